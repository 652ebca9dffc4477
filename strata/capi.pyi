# For Cython: everything of this module is declared in capi.pxd.
