# C types for worker.py, which Cython compiles as ebbpool._core.worker_c.
cimport cython
from cpython.time cimport monotonic
from ebbpool._core.future_c cimport FutureCore, _here, _NOBODY, _trimmed, breathe
from ebbpool._core.native_c cimport FINISHED, PENDING, RUNNING, called, called_with, enter, fence, leave
from ebbpool._core.pool_c cimport Pool

cdef bint GIL


cdef class Worker:
    cdef readonly Pool pool
    cdef object bell
    cdef public object thread
    cdef FutureCore current
    cdef double since
    cdef double patience
    cdef bint parked
    cdef bint roused
    cdef bint searching
    cdef bint starting
    cdef bint fresh
    cdef bint expired
    cdef bint leaving
    cdef bint first
    cdef Py_ssize_t waits


cdef class Probe:
    cdef readonly object fn
    cdef object record
    cdef double made

    cdef _tell(self, double begun, double ended)
