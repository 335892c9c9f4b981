/** Turns. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Turn, Turns } from "../src/turns.js";

test("turns come in order, and one that is given up leaves nothing", () => {
  const turns = new Turns(1);
  const [first, given, last] = [turns.ask(), turns.ask(), turns.ask()];
  assert.deepEqual([first.isReady, given.isReady, last.isReady, turns.waiting], [true, false, false, 2]);
  given.end();
  given.end();
  assert.equal(turns.waiting, 1);
  first.end();
  first.end();
  assert.deepEqual([given.isReady, last.isReady, turns.waiting], [false, true, 0]);
  last.end();
  assert.ok(turns.ask().isReady);
});

test("a turn that begins may end at once, and ask for others", () => {
  const turns = new Turns(1);
  const first = turns.ask();
  const begun: number[] = [];
  const asked: Turn[] = [1, 2, 3].map((number) => {
    const turn = turns.ask();
    turn.whenReady(() => {
      begun.push(number);
      turn.end();
    });
    return turn;
  });
  first.end();
  assert.deepEqual(begun, [1, 2, 3]);
  assert.equal(asked.length, 3);
  assert.ok(turns.ask().isReady);
});
