#!/usr/bin/env node
/** The fake as a program, with as much of the command line of `ringfence serve` as the conformance suite needs. */
import { FakeCluster } from "../../src/testing.js";

const options = new Map(process.argv.map((argument) => argument.split("=") as [string, string]));
const [host = "", port] = (options.get("--http") ?? "").split(":");
await FakeCluster.start({ host, port: Number(port) });
const parent = Number(options.get("--die-with-parent") ?? process.ppid);
setInterval(() => process.ppid === parent || process.exit(), 200);
