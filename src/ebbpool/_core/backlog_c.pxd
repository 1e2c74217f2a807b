# C types for backlog.py, which Cython compiles as ebbpool._core.backlog_c.
cimport cython
from ebbpool._core.known_c cimport Functions, Known
from ebbpool._core.native_c cimport PENDING, hold_collector, let_collector
from ebbpool._core.task_c cimport COMPACT, LaneCore, Line, Task

cdef Py_ssize_t LATE
cdef double BEYOND, LOOK, SORTED, STALE, STANDING

cpdef double _age(Task task) except? -1


cdef class Backlog:
    cdef readonly Line lent, front, short, queue
    cdef readonly Functions functions
    cdef set measured
    cdef dict not_short
    cdef bint passed, mixed
    cdef readonly bint newest
    cdef double turned_at, sorted, stale
    cdef readonly long long went_first
    cdef long long turned
    cdef list times
    cdef Py_ssize_t gone

    cdef begin(self)
    cdef Py_ssize_t waiting(self) except? -1
    cdef bint is_empty(self) except -1
    cdef trim(self, list trash)
    @cython.locals(task=Task)
    cdef Task oldest(self)
    @cython.locals(lane=LaneCore)
    cdef add(self, Task task, bint first, double now)
    cdef limit(self, Task task)
    @cython.locals(entry=list)
    cdef unlimit(self, Task task)
    @cython.locals(first=list, latest=double)
    cdef double soonest(self) except? -1
    cdef list late(self, double now)
    @cython.locals(waited=double)
    cdef choose_end(self, double now, double max_wait, long long taken)
    cdef bint stands(self, double now) except -1
    cdef line_up(self, Task call)
    cdef bint goes_first(self, Task call, double now) except -1
    cdef bint may_lead(self, Task call) except -1
    cdef bint owes(self) except -1
    cdef count(self, Task call, Py_ssize_t count)
    @cython.locals(left=Py_ssize_t)
    cdef hold_others(self, Task call, Py_ssize_t count)
    cdef forget(self, Task call)
    cdef untry(self, Task call)
    @cython.locals(short=bint)
    cdef object changes(self, double now)
    cdef unmix(self, bint others)
    @cython.locals(leads=bint)
    cdef sort(self, Line room, list trash)
    @cython.locals(turns=bint, later=bint, task=Task)
    cdef Task next(self, double now, bint others, bint shares)
