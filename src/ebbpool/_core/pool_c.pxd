# C types for pool.py, which Cython compiles as ebbpool._core.pool_c.
cimport cython
from cpython.time cimport monotonic
from ebbpool._core.native_c cimport CANCELLED, FINISHED, NOTIFIED, PENDING, RUNNING, hold_collector, let_collector

# Before the imports that form a circle, as in future_c.pxd.
cdef class Pool
cdef Pool _ORPHANS

from ebbpool._core.future_c cimport FutureCore, _here
from ebbpool._core.known_c cimport Functions, Known
from ebbpool._core.lane_c cimport LaneCore
from ebbpool._core.worker_c cimport Worker, gap

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

cdef str START, EXTRA, HASTE, WATCH
cdef Py_ssize_t COMPACT, ROOM, SHORT_ROOM
cdef double LOOK, LOOKS, SORTED, STALE, STANDING

cdef tuple _call_of(FutureCore future, bint known)
cpdef double _age(FutureCore future) except? -1
cdef bint _is_lent(FutureCore future) except -1
@cython.locals(current=FutureCore)
cdef bint _is_left(Worker worker) except -1


cdef class Pool:
    cdef cython.pymutex mutex
    cdef readonly object crew
    cdef readonly Functions functions
    cdef object front, short, queue, enqueue, dequeue, oldest_first, seekers, record
    cdef set measured
    cdef dict behind
    cdef list parked, workers, idlers, backlogs, promised
    cdef readonly Py_ssize_t min_workers, ceiling, max_workers, min_spare_workers, max_queue, roused, short_room, headcount
    cdef readonly Py_ssize_t starting, blocked, written_off, allowed, limit, dead
    cdef readonly double patience, max_wait
    cdef readonly bint rejecting, contextual, closed, broken, searching, covered, at_ceiling
    cdef bint deserted, wrapping, special, turned_away, timed, minded, passed, mixed
    cdef Py_ssize_t every, skip, ahead, shorts
    cdef public bint slow_start, short_first
    cdef double clock, stale, sought, sorted, turned_at
    cdef long long turned
    cdef readonly long long expired, taken, failed, cancelled, rejected, started, went_first
    cdef public Py_ssize_t crowd

    cdef _begin(self, list workers)
    @cython.locals(lane=LaneCore, wait=double, holds=bint)
    cpdef push(self, FutureCore future, bint first=*, object waiter=*, bint in_line=*)
    @cython.locals(lane=LaneCore, place=Py_ssize_t)
    cdef _enter(self, FutureCore future, bint first)
    cdef _keep_time(self, FutureCore future)
    cdef Py_ssize_t _most(self) except? -1
    @cython.locals(first=FutureCore, place=Py_ssize_t)
    cdef bint _lends(self) except -1
    cdef bint _wants_more(self) except -1
    cdef _count_expired(self, FutureCore future)
    @cython.locals(lane=LaneCore)
    cdef list _late(self, double now, list trash)
    @cython.locals(future=FutureCore, more=bint)
    cdef bint _overdue(self, object line, double now, list found) except -1
    cdef _block(self, Worker worker, Py_ssize_t places)
    cpdef double wait_left(self, FutureCore future) except -2
    cdef _choose_end(self, double now)
    cdef Py_ssize_t _short_room(self) except? -1
    cdef _line_up(self, FutureCore call)
    @cython.locals(left=Py_ssize_t)
    cdef _hold_others(self, FutureCore call, Py_ssize_t count)
    cdef _give_up_place(self, FutureCore call)
    cdef bint _may_lead(self, FutureCore call) except -1
    cdef _leave_line(self, FutureCore call)
    cdef _count(self, FutureCore call, Py_ssize_t count)
    cdef _untry(self, FutureCore call)
    cdef bint _goes_first(self, FutureCore call) except -1
    cdef bint _short_full(self) except -1
    cdef bint _owes(self) except -1
    cdef Known _sort(self, double now, list trash)
    cdef _note_end(self, Worker worker)
    cdef FutureCore _next(self, Worker worker)
    cdef _make_room(self)
    cdef _vacate(self, LaneCore lane, bint failed)
    @cython.locals(future=FutureCore)
    cdef _admit(self, LaneCore lane)
    cdef _withdraw(self, FutureCore future)
    @cython.locals(found=FutureCore, future=FutureCore)
    cdef FutureCore _oldest(self)
    cdef _refusal(self)
    cdef Py_ssize_t _coming(self) except? -1
    cdef _arrange(self)
    cdef _staff(self)
    @cython.locals(worker=Worker)
    cdef _rouse(self)
    cdef _spare(self)
    cdef Py_ssize_t _engaged(self) except? -1
    cdef bint _has_place(self, Py_ssize_t more) except -1
    cdef bint _has_room(self, Py_ssize_t more) except -1
    @cython.locals(worker=Worker)
    cdef _rouse_all(self)
    cdef _run(self, object errand, FutureCore future)
    cdef _unpark(self, Worker worker)
    cdef Py_ssize_t _waiting(self) except? -1
    cdef bint _lacks_spare(self) except -1
    cdef _special(self)
    cdef Py_ssize_t _surplus(self) except? -1
    cdef _uncover(self)
    cdef _lend(self, Py_ssize_t places)
    cdef _reserve(self, Py_ssize_t count)
    cpdef bint unreserve(self, bint searching, FutureCore future, bint bounded) except -1
    cpdef abandon(self, object scope, bint left)
    @cython.locals(worker=Worker, current=FutureCore, most=Py_ssize_t)
    cdef _write_off_abandoned(self)
    cdef _write_off(self, Worker worker, Py_ssize_t places)
    @cython.locals(left=Py_ssize_t)
    cdef _write_off_long(self, double now)
    cdef bint _may_write_off(self, Worker worker) except -1
    cpdef hung(self)
    cdef _arrived(self, Worker worker)
    cdef _clear(self, Worker worker)
    cdef _rest(self, Worker worker)
    cdef _remove(self, Worker worker)
    cpdef bint runs_here(self) except -1
    cdef expire(self, Worker worker)
    cdef bury(self, FutureCore future, int code, bint late)
    @cython.locals(worker=Worker, held=Py_ssize_t, queued=Py_ssize_t)
    cpdef Py_ssize_t unclaimed(self, LaneCore lane) except? -1
    @cython.locals(future=FutureCore, found=FutureCore, owner=LaneCore)
    cpdef hand_back(self, LaneCore lane)
    cpdef bint excused(self) except -1
    cdef _tell_idlers(self)
    cpdef forbids(self)
    cdef _trim(self, list trash)
    cdef sweep(self, FutureCore future)
    @cython.locals(line=object, dead=Py_ssize_t)
    cdef _compact(self, LaneCore lane)
