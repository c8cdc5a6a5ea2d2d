/** Prefix sums over rows (a Fenwick tree): adding and summing take O(log n). */
export class RowSums {
  /** @param {number} length */
  constructor(length) {
    this.tree = new Float64Array(length + 1);
    this.present = new Uint8Array(length);
    this.total = 0;
    this.count = 0;
  }

  /** @param {number} row @param {number} bytes @param {1|-1} sign */
  add(row, bytes, sign) {
    const { tree } = this;
    this.present[row] = sign > 0 ? 1 : 0;
    this.total += sign * bytes;
    this.count += sign;
    for (let node = row + 1; node < tree.length; node += node & -node) tree[node] += sign * bytes;
  }

  /** Remove a row if it is present. @param {number} row @param {number} bytes */
  remove(row, bytes) {
    if (this.present[row]) this.add(row, bytes, -1);
  }

  /** The sum of all rows before a row. @param {number} row */
  before(row) {
    let sum = 0;
    for (let node = row; node > 0; node -= node & -node) sum += this.tree[node];
    return sum;
  }
}
