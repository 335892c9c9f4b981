import assert from "node:assert/strict";
import { test } from "node:test";
import { Bag } from "../src/bag.js";
import { Stop } from "../src/stop.js";

test("what is in a bag keeps its order, whatever is taken out", () => {
  const bag = new Bag<number>();
  const links = [0, 1, 2, 3, 4].map((n) => bag.add(n));
  for (const [n, left] of [
    [2, [0, 1, 3, 4]],
    [0, [1, 3, 4]],
    [0, [1, 3, 4]],
    [4, [1, 3]],
  ] as const) {
    links[n]?.remove();
    assert.deepEqual([bag.values(), bag.size], [left, left.length]);
  }
  const last = bag.add(5);
  assert.deepEqual(bag.values(), [1, 3, 5]);
  for (const link of [links[1], last, links[3]]) {
    link?.remove();
  }
  assert.deepEqual([bag.values(), bag.size, bag.first], [[], 0, undefined]);
  bag.add(6);
  assert.equal(bag.first?.value, 6);
});

test("one that is told of a stop may end another's interest in it", () => {
  const stop = new Stop();
  const told: string[] = [];
  stop.listen((reason) => {
    told.push(`first ${reason}`);
    ignore();
  });
  const ignore = stop.listen(() => told.push("second"));
  stop.listen((reason) => told.push(`third ${reason}`));
  stop.stop("enough");
  stop.stop("again");
  stop.listen((reason) => told.push(`late ${reason}`));
  assert.deepEqual(told, ["first enough", "third enough", "late enough"]);
  assert.equal(stop.listening, 0);
});
