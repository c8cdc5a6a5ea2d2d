/**
 * The value of a key, made on its first use.
 * @template K, V
 * @param {Map<K, V>} map @param {K} key @param {() => V} make
 * @returns {V}
 */
export function remember(map, key, make) {
  let found = map.get(key);
  if (found === undefined) {
    found = make();
    map.set(key, found);
  }
  return found;
}
