"""strata's small HIP header against the installed bindings: constants, sizes, layouts, prototypes."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from rocm.bindings import cyhip, hip

from tests.abi.conftest import HEADER

#: Give an enumeration its width in C; HIP has no such names.
PADDING = re.compile(r"hip\w*(ForceWidth|Max)$|hipMemcpySrcAccessOrderMax$")

STRUCTS = ("hipDeviceProp_t", "hipPointerAttribute_t", "hipMemcpyAttributes", "hipMemLocation")


def enumerations(header: str) -> dict[str, list[str]]:
    """Enumerations of the header that HIP has, too, with their members."""
    found = {}
    for body, name in re.findall(r"typedef enum \w+ \{(.*?)\} (\w+);", header, flags=re.DOTALL):
        found[name] = re.findall(r"\b(\w+) =", body)
    return found


def macros(header: str) -> list[str]:
    return re.findall(r"#define (hip\w+) 0x", header)


def test_the_header_has_what_is_looked_for(header: str) -> None:
    assert set(enumerations(header)) == {
        "hipError_t",
        "hipDeviceAttribute_t",
        "hipMemoryType",
        "hipMemcpyKind",
        "hipMemLocationType",
        "hipMemcpySrcAccessOrder",
        "hipPointer_attribute",
    }
    assert len(macros(header)) >= 9
    assert len(enumerations(header)["hipError_t"]) > 25


def test_every_member_of_an_enumeration_has_the_bindings_value(header: str, ask_compiler) -> None:
    for enumeration, members in enumerations(header).items():
        theirs = getattr(hip, enumeration)
        values = ask_compiler(enumeration, members)
        different = {}
        for member, value in zip(members, values, strict=True):
            if PADDING.match(member):
                continue
            known = getattr(theirs, member, None)
            if known is None or int(known) != value:
                different[member] = (value, known)
        assert different == {}, enumeration


def test_an_enumeration_is_an_int(header: str, ask_compiler) -> None:
    names = list(enumerations(header))
    assert ask_compiler("widths", [f"sizeof({name})" for name in names]) == [4] * len(names)


def test_flags_have_the_bindings_values(header: str, ask_compiler) -> None:
    names = macros(header)
    values = ask_compiler("flags", names)
    assert {name: int(getattr(hip, name)) for name in names} == dict(zip(names, values, strict=True))


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_have_the_bindings_sizes(name: str, ask_compiler) -> None:
    assert ask_compiler(f"size_{name}", [f"sizeof({name})"]) == [getattr(hip, name).allocate().c_sizeof()]


def bytes_of(struct: object, size: int) -> bytes:
    address = struct.as_c_void_p()  # type: ignore[attr-defined]
    return ctypes.string_at(getattr(address, "value", address), size)


#: Two values of each field that is set here, chosen so that every byte in which they differ tells.
FIELDS = {
    "hipPointerAttribute_t": {
        "type": (hip.hipMemoryType.hipMemoryTypeHost, hip.hipMemoryType.hipMemoryTypeDevice),
        "device": (0x01010101, 0x02020202),
        "isManaged": (0x01010101, 0x02020202),
        "allocationFlags": (0x01010101, 0x02020202),
    },
    "hipMemcpyAttributes": {
        "srcAccessOrder": (
            hip.hipMemcpySrcAccessOrder.hipMemcpySrcAccessOrderStream,
            hip.hipMemcpySrcAccessOrder.hipMemcpySrcAccessOrderAny,
        ),
        "flags": (0x01010101, 0x02020202),
    },
    "hipDeviceProp_t": dict.fromkeys(("totalGlobalMem", "warpSize", "multiProcessorCount", "pciDeviceID", "hostRegisterSupported", "memoryPoolsSupported", "asicRevision"), (16843009, 33686018)),
    "hipMemLocation": {
        "type": (hip.hipMemLocationType.hipMemLocationTypeDevice, hip.hipMemLocationType.hipMemLocationTypeHost),
        "id": (0x01010101, 0x02020202),
    },
}


@pytest.mark.parametrize(("name", "field"), [(n, f) for n, fields in FIELDS.items() for f in fields])
def test_fields_lie_where_the_bindings_write_them(name: str, field: str, ask_compiler) -> None:
    kind = getattr(hip, name)
    offset, size = ask_compiler(
        f"place_{name}_{field}", [f"offsetof({name}, {field})", f"sizeof((({name}*)0)->{field})"]
    )
    images = []
    for value in FIELDS[name][field]:
        struct = kind.allocate()
        setattr(struct, field, value)
        images.append(bytes_of(struct, struct.c_sizeof()))
    changed = [k for k in range(len(images[0])) if images[0][k] != images[1][k]]
    assert changed
    assert changed[0] == offset  # little-endian: the first byte differs in every pair
    assert changed[-1] < offset + size


def prototypes(text: str, pattern: str) -> dict[str, tuple[str, ...]]:
    """Functions with their parameters' types, names left out and blanks evened."""
    found = {}
    for name, parameters in re.findall(pattern, text, flags=re.DOTALL):
        types = []
        for parameter in parameters.split(","):
            words = re.sub(r"\s+", " ", parameter.replace("*", " * ")).strip().split(" ")
            if words in (["void"], [""]):
                continue
            if len(words) > 1 and words[-1] != "*":
                words = words[:-1]  # its name
            types.append(" ".join(word for word in words if word != "const"))
        found[name] = tuple(types)
    return found


def test_functions_have_the_bindings_prototypes(header: str) -> None:
    client = re.sub(r"/\*.*?\*/", "", HEADER.with_name("hip_client.h").read_text(), flags=re.DOTALL)
    client = client.replace("R0600", "")
    ours = prototypes(header + client, r"STRATA_HIP_API [\w ]+?\*? ?(hip\w+)\(([^)]*)\);")
    declarations = Path(cyhip.__file__).with_name("cyhip.pxd").read_text()
    theirs = prototypes(declarations, r"^cdef [\w ]+?\*? ?(hip\w+)\(([^)]*)\)", )
    theirs |= prototypes(declarations, r"\ncdef [\w ]+?\*? ?(hip\w+)\(([^)]*)\)")
    assert len(ours) > 60
    missing = sorted(set(ours) - set(theirs))
    assert missing == []
    assert {name: theirs[name] for name in ours} == ours
