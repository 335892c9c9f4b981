/** The module and the decorator in a real application of NestJS, against a real node. */
import "reflect-metadata";
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { Controller, Get, Injectable, Module, Param } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { Client } from "../src/index.js";
import { currentLease, currentSignal, Fenced, RingfenceModule } from "../src/nestjs.js";
import { FakeCluster } from "../src/testing.js";
import { Cluster } from "./support/cluster.js";
import { until } from "./support/until.js";

let running = 0;
let most = 0;
const revoked: string[] = [];
let url = "";

@Injectable()
class Reports {
  constructor(readonly client: Client) {}

  @Fenced((id: string) => `reports/${id}`, { holder: "reports" })
  async write(_: string): Promise<number> {
    running += 1;
    most = Math.max(most, running);
    await new Promise((resolve) => setTimeout(resolve, 50));
    running -= 1;
    return currentLease().token;
  }
}

@Controller()
class ReportsController {
  constructor(readonly reports: Reports) {}

  @Get("reports/:id")
  async write(@Param("id") id: string): Promise<number> {
    return await this.reports.write(id);
  }

  // In any order.
  @Fenced((id: string) => ["lost", id], { ttl: 3_000 })
  @Get("lost/:id")
  async lose(@Param("id") _: string): Promise<string> {
    const lease = currentLease();
    await fetch(`${url}/v1/revoke`, { method: "POST", body: JSON.stringify({ key: "lost", token: lease.token }) });
    await once(lease.signal, "abort");
    revoked.push(`${lease.keys} ${lease.reason}`);
    return "it went well";
  }

  @Get("held")
  async hold(): Promise<string> {
    await this.reports.client.acquire("held");
    return "held";
  }
}

let late: Promise<unknown> | undefined;
let isSlow = false;

@Injectable()
class Slow {
  @Fenced("slow")
  async work(): Promise<string> {
    const signal = currentSignal();
    const { token } = currentLease();
    isSlow = true;
    await once(signal, "abort");
    late = new Promise((resolve) => setTimeout(resolve, 50)).then(() => currentLease());
    late.catch(() => undefined);
    return `${signal.reason.kind} ${currentLease().state} ${currentLease().token === token}`;
  }
}

test("methods that run are told of the end of the application, and keep their leases until they have ended", async () => {
  assert.equal(Slow.prototype.work.name, "work");
  await using cluster = await FakeCluster.start();
  @Module({ imports: [RingfenceModule.forRoot(cluster.client())], providers: [Slow] })
  class AppModule {}
  const app = await NestFactory.createApplicationContext(AppModule, { logger: false });
  const slow = app.get(Slow);
  const [first, second] = [slow.work(), slow.work().catch((error) => error)];
  await until("one works, and one waits", () => isSlow && cluster.waiters("slow") === 1);
  await app.close();
  assert.equal(await first, "Closed held true");
  assert.equal((await second).kind, "Closed");
  await assert.rejects(async () => await late, TypeError);
});

test("methods work under leases, and the client ends with the application", async (t) => {
  await using cluster = await Cluster.start(1);
  url = cluster.urls[0] ?? "";
  @Module({
    imports: [RingfenceModule.forRoot({ urls: cluster.urls })],
    controllers: [ReportsController],
    providers: [Reports],
  })
  class AppModule {}
  const app = await NestFactory.create(AppModule, { logger: false });
  t.after(() => app.close());
  await app.listen(0, "127.0.0.1");
  const { port } = app.getHttpServer().address() as AddressInfo;
  const get = async (path: string) => await fetch(`http://127.0.0.1:${port}/${path}`);

  const tokens = await Promise.all([1, 2, 3, 4].map(async () => Number(await (await get("reports/1")).text())));
  assert.deepEqual([most, new Set(tokens).size], [1, 4]);
  await Promise.all([1, 2, 3].map((id) => get(`reports/${id}`)));
  assert.ok(most > 1, "other keys do not wait");

  const lost = await get("lost/7");
  assert.equal(lost.status, 500);
  assert.deepEqual(revoked, ["lost,7 revoked"]);

  assert.equal(await (await get("held")).text(), "held");
  assert.equal((await cluster.key("held")).holders, 1);
  assert.throws(currentLease, TypeError);
  await app.close();
  await until("it is released", async () => (await cluster.key("held")).holders === 0);

  const alone = new Reports(app.get(Client));
  await assert.rejects(alone.write("1"), /needs the RingfenceModule/);
});
