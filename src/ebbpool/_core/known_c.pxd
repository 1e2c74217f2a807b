# C types for known.py, which Cython compiles as ebbpool._core.known_c.
cimport cython
from ebbpool._core.native_c cimport code_identity

cdef double SHORT, SHARE, FADING
cdef Py_ssize_t REMEMBERED


cdef class Known:
    cdef readonly object key
    cdef readonly str name
    cdef readonly double spent, ended, starts
    cdef readonly Py_ssize_t running
    cdef bint tried, short
    cdef Py_ssize_t waiting

    cdef begin(self, double now)
    cdef drop(self, double began)
    cdef end(self, double began, double now)
    cpdef double seconds(self, double now) except? -1


cdef class Functions:
    cdef readonly Known all
    cdef dict _young, _old

    cpdef Known of(self, object fn, tuple args)
    cdef bint is_short(self, Known known, double now) except -1
    cpdef begin(self, Known known, double now)
    cpdef end(self, Known known, double began, double now)
    cdef drop(self, Known known, double began)
