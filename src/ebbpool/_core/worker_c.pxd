# C types for worker.py, which Cython compiles as ebbpool._core.worker_c.
cimport cython

# Before the imports that form a circle, as in future_c.pxd.
cdef Py_ssize_t gap(Py_ssize_t every) except -1

from cpython.time cimport monotonic
from ebbpool._core.future_c cimport FutureCore, _here, _NOBODY, breathe
from ebbpool._core.known_c cimport Known
from ebbpool._core.native_c cimport FINISHED, PENDING, RUNNING, called, called_with, enter, fence, leave
from ebbpool._core.pool_c cimport Pool

cdef bint GIL


cdef class Worker:
    cdef readonly Pool pool
    cdef object bell
    cdef public object thread
    cdef FutureCore current
    cdef Known known
    cdef double since, patience, begun
    cdef bint parked, searching, starting, fresh, expired, leaving, noted, ahead, short, written_off
    cdef Py_ssize_t waits


cdef class Probe:
    cdef readonly object fn
    cdef object record
    cdef double made

    cdef _tell(self, double begun, double ended)
