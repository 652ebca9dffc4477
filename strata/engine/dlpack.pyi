from typing import Any

def bytes_capsule(owner: object, address: int, nbytes: int, device_type: int, device_id: int) -> Any:
    """A one-dimensional uint8 tensor over memory that `owner` keeps alive."""
