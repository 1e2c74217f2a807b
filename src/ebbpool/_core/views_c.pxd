# C types for views.py, which Cython compiles as ebbpool._core.views_c.
cimport cython
from cpython.time cimport monotonic
from ebbpool._core.backlog_c cimport Backlog
from ebbpool._core.native_c cimport AHEAD, BLOCKED, LEFT, LONG, PENDING, SHORT, hold_collector, let_collector
from ebbpool._core.pool_c cimport Pool, is_left
from ebbpool._core.staff_c cimport Staff, Worker
from ebbpool._core.task_c cimport LaneCore, Line, Tally, Task

cdef Py_ssize_t SEARCHED

cdef tuple _call_of(Task task, bint known)
cdef dict _counts(Pool pool, Py_ssize_t running, Py_ssize_t queued)
