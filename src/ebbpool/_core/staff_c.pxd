# C types for staff.py, which Cython compiles as ebbpool._core.staff_c.
cimport cython
from ebbpool._core.known_c cimport Known
from ebbpool._core.native_c cimport AHEAD, BLOCKED, COMING, GONE, LEFT, LENT, LONG, PARKED, WORKING, SHORT, STARTING, STATES, shared_size
from ebbpool._core.task_c cimport Task

cdef Py_ssize_t SHORT_ROOM


cdef class Worker:
    cdef readonly object pool
    cdef object bell, error
    cdef public object thread
    cdef Task current
    cdef Known known
    cdef double since, keep_alive, begun
    cdef bint expired
    cdef int state, kind, actions
    cdef Py_ssize_t waits

    cdef ring(self)


cdef class Staff:
    cdef Py_ssize_t[11] counts
    cdef readonly shared_size min_workers, ceiling, min_spare_workers, short_room, headcount, allowed
    cdef readonly Py_ssize_t started, off, written_off, limit, unborn
    cdef readonly double keep_alive
    cdef public bint short_first
    cdef public shared_size many
    cdef list workers, parked

    @cython.locals(state=int, worker=Worker)
    cdef begin(self, list workers)
    cdef configure(self, Py_ssize_t min_workers, Py_ssize_t ceiling, Py_ssize_t min_spare_workers, double keep_alive)
    cdef admit(self, Py_ssize_t allowed)
    @cython.locals(parked=bint)
    cdef move(self, Worker worker, int state)
    cdef become(self, Worker worker, int kind)
    cdef hire(self, Py_ssize_t count)
    cdef unhire(self, Py_ssize_t count)
    cdef leave(self, Worker worker)
    cdef Py_ssize_t active(self) except? -1
    cdef Py_ssize_t engaged(self) except? -1
    cpdef Py_ssize_t on_their_way(self) except? -1
    cdef bint has_place(self, Py_ssize_t more) except -1
    cdef bint has_short_place(self) except -1
    cdef bint lacks_spare(self) except -1
    cdef bint may_write_off(self, Worker worker) except -1
