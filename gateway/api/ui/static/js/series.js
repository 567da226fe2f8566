// The last values of a figure, in memory that does not grow.

export class Series {
  constructor(length = 180) {
    this.values = new Float32Array(length).fill(NaN);
    this.end = 0;
    this.count = 0;
  }

  push(value) {
    this.values[this.end] = value ?? NaN;
    this.end = (this.end + 1) % this.values.length;
    this.count = Math.min(this.count + 1, this.values.length);
  }

  get last() {
    return this.count ? this.values[(this.end + this.values.length - 1) % this.values.length] : NaN;
  }

  // The oldest first.
  *[Symbol.iterator]() {
    const length = this.values.length;
    for (let i = 0; i < this.count; i++) yield this.values[(this.end + length - this.count + i) % length];
  }
}

// Series by name, at most so many; those that were not written to in a round of `sweep` are forgotten.
export class SeriesBook {
  constructor(most = 4096, length = 180) {
    this.most = most;
    this.length = length;
    this.found = new Map();
    this.written = new Set();
  }

  push(name, value) {
    let series = this.found.get(name);
    if (!series) {
      if (this.found.size >= this.most) return;
      series = new Series(this.length);
      this.found.set(name, series);
    }
    series.push(value);
    this.written.add(name);
  }

  // Of some time nothing is known.
  gap() {
    for (const series of this.found.values()) series.push(NaN);
  }

  sweep() {
    for (const name of this.found.keys()) if (!this.written.has(name)) this.found.delete(name);
    this.written.clear();
  }

  get(name) {
    return this.found.get(name) ?? null;
  }
}
