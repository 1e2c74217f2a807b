# C types for pool.py, which Cython compiles as ebbpool._core.pool_c.
cimport cython
from cpython.time cimport monotonic
from ebbpool._core.backlog_c cimport SORTED, Backlog
from ebbpool._core.known_c cimport Known
from ebbpool._core.native_c cimport (
    AHEAD, BLOCKED, CANCELLED, COMING, FINISHED, GONE, LEFT, LENT, LONG, LOOK, NOTIFIED, PARKED, PENDING, RUNNING,
    SHORT, START, STARTING, WORKING, hold_collector, let_collector, shared_bint, shared_double, shared_size,
)
from ebbpool._core.staff_c cimport Staff, Worker
from ebbpool._core.task_c cimport LaneCore, Line, Tally, Task

cdef extern from *:
    """
    /* Frees a mutex and returns whether it was taken; only where there is one thread. Cython's mutex has either type. */
    #if PY_VERSION_HEX > 0x030d0000
    #include <string.h>
    static CYTHON_INLINE int ebbpool_free_mutex(PyMutex *mutex)
    {
        static const PyMutex untouched = {0};
        int taken = memcmp(mutex, &untouched, sizeof untouched) != 0;
        memcpy(mutex, &untouched, sizeof untouched);
        return taken;
    }
    #else
    static CYTHON_INLINE int ebbpool_free_mutex(PyThread_type_lock *mutex)
    {
        int taken = !PyThread_acquire_lock(*mutex, NOWAIT_LOCK);
        PyThread_release_lock(*mutex);
        return taken;
    }
    #endif
    #define ebbpool_free_mutex_of(owner) ebbpool_free_mutex(&(owner)->mutex)
    """
    bint free_mutex "ebbpool_free_mutex_of"(Pool pool) noexcept

cdef class Pool
cdef Pool _ORPHANS
cdef double AGAIN, HORIZON, TICK
cdef Py_ssize_t ROOM

@cython.locals(current=Task)
cdef bint is_left(Worker worker) except -1


cdef class Wrapping:
    cdef shared_bint wraps
    cdef shared_size every, skip
    cdef object record

    cdef skip_some(self)


cdef class Pool:
    cdef cython.pymutex mutex
    cdef readonly object crew
    cdef readonly Wrapping wrapping
    cdef readonly Staff staff
    cdef readonly Backlog backlog
    cdef readonly Tally tally
    cdef double clock, next_look, refused
    cdef readonly shared_size max_queue
    cdef readonly shared_double max_wait
    cdef readonly shared_bint closed, broken
    cdef readonly bint grows_when_full, contextual
    cdef shared_bint deserted
    cdef bint special
    cdef readonly long long rejected
    cdef Line room
    cdef readonly dict submitters
    cdef readonly list idlers

    cdef _begin(self)
    cdef _special(self)
    @cython.locals(wait=double, enters=bint, asks=bint, actions=int, staff=Staff)
    cpdef push(self, Task task, bint first=*, bint waits=*, object submitter=*)
    cdef _wait_for_room(self, Task task, tuple waiter)
    @cython.locals(room=Line)
    cdef _settle(self)
    cdef _keep_dead(self, Task task)
    @cython.locals(first=bint)
    cdef _let_in(self, Task task)
    cdef object _refusal(self, bint grows)
    @cython.locals(staff=Staff, backlog=Backlog, short=Py_ssize_t, others=Py_ssize_t)
    cdef bint _lacks_short_room(self) except -1
    cdef Py_ssize_t _in_queue(self) except? -1
    cdef Py_ssize_t _coming(self) except? -1
    @cython.locals(line=Line)
    cdef _withdraw(self, Task task)
    @cython.locals(lane=LaneCore, line=Line)
    cdef end(self, Task task, int code, bint late)
    cdef _count(self, Tally tally, int code, bint late)
    cdef _vacate(self, LaneCore lane, bint failed)
    cdef _leave_lane(self, LaneCore lane)
    @cython.locals(line=Line)
    cdef sweep(self, Task task)
    @cython.locals(waiting=Py_ssize_t, wanted=double, actions=int, staff=Staff, backlog=Backlog)
    cdef int _balance(self, bint arrived, bint refused=*) except -1
    @cython.locals(staff=Staff, most=Py_ssize_t, worker=Worker)
    cdef _send_home(self, Py_ssize_t waiting)
    cdef _hire(self, Py_ssize_t count)
    @cython.locals(active=Py_ssize_t, staff=Staff)
    cdef bint _needs_worker(self) except -1
    @cython.locals(starting=Py_ssize_t, short=Py_ssize_t, staff=Staff, backlog=Backlog)
    cdef bint _needs_one_beyond(self) except -1
    cdef Py_ssize_t _most(self) except? -1
    cdef Py_ssize_t _surplus(self) except? -1
    cdef bint _has_room(self, Py_ssize_t more) except -1
    @cython.locals(actions=int)
    cdef make_up(self)
    cdef _perform(self, int actions, Task task)
    cdef object _start(self, Task task)
    @cython.locals(staff=Staff, actions=int)
    cdef bint _give_back(self, Task task) except -1
    cdef bint _too_many(self, Task task) except -1
    @cython.locals(staff=Staff, backlog=Backlog, queue=Line, changes=bint)
    cdef Task turn(self, Worker worker, Task done, bint failed)
    cdef int _take_up(self, Worker worker, bint arrives) except -1
    @cython.locals(staff=Staff, backlog=Backlog, others=bint, shares=bint, kind=int)
    cdef Task _choose(self, Worker worker)
    @cython.locals(known=Known, was_left=bint)
    cdef _note_end(self, Worker worker)
    @cython.locals(staff=Staff, expired=bint)
    cdef _rest(self, Worker worker)
    cpdef bint runs_here(self) except -1
    cpdef abandon(self, object scope, bint left)
    @cython.locals(staff=Staff)
    cdef _write_off_abandoned(self)
    @cython.locals(staff=Staff)
    cdef _write_off_long(self, double now)
    cpdef hung(self)
    cpdef bint excused(self) except -1
    cdef _tell_idlers(self)
    cpdef forbids(self)
    @cython.locals(staff=Staff)
    cdef bint finds_idle(self) except -1
    cpdef hand_back(self, LaneCore lane)
    @cython.locals(backlog=Backlog)
    cdef Task _next_of(self, LaneCore lane)
