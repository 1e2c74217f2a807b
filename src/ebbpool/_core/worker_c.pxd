# C types for worker.py, which Cython compiles as ebbpool._core.worker_c.
cimport cython
from cpython.time cimport monotonic
from ebbpool._core.future_c cimport FutureCore, _here, _NOBODY, breathe
from ebbpool._core.native_c cimport FINISHED, GONE, RUNNING, called, called_with, enter, leave
from ebbpool._core.pool_c cimport Pool
from ebbpool._core.staff_c cimport Worker
from ebbpool._core.task_c cimport Task

cdef bint GIL_ENABLED

cdef object make_call(Worker worker, Task future)
cdef object refuse(Worker worker, Task future)


cdef class Probe:
    cdef readonly object fn
    cdef object record
    cdef double made

    cdef _tell(self, double begun, double ended)
