// The rule by which a pool grows, as in src/ebbpool/_pool/sizing.py, line by line; a test compares the two.
(function (root) {
  "use strict";

  const constants = {
    TICK: 0.001,
    QUICK_TICK: 0.0005,
    WINDOW: 0.012,
    IDLE: 0.35,
    BUSY: 0.8,
    SPARE: 0.6,
    LATE: 0.5,
    PUNCTUAL: 0.3,
    OWN: 0.1,
    CREW: 4,
    PAUSE: 0.004,
    ARRIVAL: 0.01,
    STALL: 0.2,
    STALL_PAUSE: 0.5,
    START_COST: 150e-6,
    MEMORY: 0.1,
  };
  const C = constants;

  class Sizing {
    constructor() {
      this._forget();
    }

    begin(rest) {
      if (rest > C.MEMORY) {
        this._forget();
      }
      this.tick = C.TICK;
      this._step = 1;
      this._granted = 0;
    }

    _forget() {
      this.tick = C.TICK;
      this._step = 1;
      this._granted = 0;
      this._pause = this._stalled = 0.0;
      this._cpu = this._late = this._elapsed = 0.0;
      this._used = 0.0;
      this.busy = false;
      this.asks = false;
      this.settled = false;
      this._cause = "";
    }

    why() {
      const used = `processors ${Math.round(100 * Math.min(1.0, this._used))}% used`;
      return this._cause ? `${used}, ${this._cause}` : used;
    }

    // sample: as `Sample` in Python, `asleep` being null or {counted, outside, in_locks, in_doubt}.
    decide(sample, bounds) {
      this._weigh(sample);
      this.settled = false;
      this._cause = "";
      const waiting = Math.max(0, sample.queued - sample.idle - sample.starting);
      const spare = bounds.min_spare_workers - sample.idle - sample.starting;
      const short = Math.max(bounds.min_workers, Math.min(1, sample.queued)) - sample.workers;
      const ceiling = bounds.max_workers + sample.blocked;
      const wanted = Math.min(Math.max(waiting, spare, short), ceiling - sample.workers);
      if (wanted <= 0) {
        return 0;
      }
      let grow;
      if (sample.refused) {
        this._cause = "the system refused the last thread";
        grow = this._pause >= C.STALL ? 1 : 0;
      } else if (!waiting) {
        this._cause = "idle workers are kept ahead";
        grow = wanted;
      } else {
        grow = Math.max(Math.min(this._growth(sample), waiting), short, this.busy ? 0 : spare);
      }
      grow = Math.min(grow, wanted);
      if (grow > 0) {
        this._pause = 0.0;
        this._granted = grow;
      }
      return grow;
    }

    _weigh(sample) {
      const elapsed = Math.max(sample.elapsed, 1e-6);
      const starts = this._granted * C.START_COST;
      this._granted = 0;
      const cpu = Math.max(0.5 * sample.cpu, sample.cpu - starts);
      const late = Math.max(sample.late, elapsed - this.tick - 2 * starts);
      this.tick = C.TICK;
      const keep = Math.max(0.0, 1.0 - elapsed / C.WINDOW);
      this._cpu = this._cpu * keep + cpu;
      this._late = this._late * keep + late;
      this._elapsed = this._elapsed * keep + elapsed;
      this._pause += elapsed;
      this._stalled = sample.taken ? 0.0 : this._stalled + elapsed;
      this._used = this._cpu / (this._elapsed * sample.cpus);
      const lateness = this._late / this._elapsed;
      const full = Math.max(this._used, cpu / (elapsed * sample.cpus)) > C.BUSY;
      if (full || (lateness > C.LATE && this._used * sample.cpus > C.OWN)) {
        this.busy = true;
      } else if (this._used < C.SPARE && lateness < C.PUNCTUAL) {
        this.busy = false;
      }
    }

    _growth(sample) {
      const limit = sample.cpus + C.CREW;
      const present = sample.workers - sample.blocked;
      let in_doubt = 0;
      const in_use = this.busy || this._used >= C.IDLE;
      this.asks = in_use || present >= limit;
      let running;
      if (sample.asleep !== null) {
        in_doubt = sample.asleep.in_doubt;
        running = present - sample.asleep.outside - Math.max(0, sample.asleep.in_locks - sample.idle - sample.blocked);
        const came = Math.max(0, sample.workers - sample.asleep.counted);
        if (!in_use) {
          running -= came;
        } else if (0 < running && running <= came && this._pause < C.MEMORY) {
          return 0;
        }
      } else if (this.busy) {
        running = present;
      } else {
        running = in_use ? Math.min(present, limit - 1) : 0;
      }
      if (running >= limit) {
        this._step = 1;
        if (!in_use && running - in_doubt < limit) {
          return this._pause >= C.PAUSE ? 1 : 0;
        }
        this.settled = true;
        this._cause = `${running} workers run`;
        return this._stalled >= C.STALL && this._pause >= (in_use ? C.STALL_PAUSE : C.PAUSE) ? 1 : 0;
      }
      if (in_use && running > 0) {
        this._step = 1;
        if (this._pause < C.PAUSE) {
          return 0;
        }
        this._cause = `${running} of ${present} workers run`;
        return 2 * running < present ? limit - running : 1;
      }
      this.tick = !in_use && this._used * sample.cpus < 1.0 ? C.QUICK_TICK : C.TICK;
      if (sample.starting >= Math.max(1, Math.floor(this._step / 4)) && this._pause < C.ARRIVAL) {
        return 0;
      }
      const grow = this._step;
      this._step = Math.min(2 * this._step, sample.queued + 1);
      return grow;
    }
  }

  const exported = { Sizing, constants };
  if (typeof module === "object" && module.exports) {
    module.exports = exported;
  } else {
    root.ebbpoolSizing = exported;
  }
})(typeof window === "object" ? window : globalThis);
