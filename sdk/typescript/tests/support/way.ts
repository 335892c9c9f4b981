/** A way to a node that can be cut, so that neither side notices. */
import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";

export class Way implements AsyncDisposable {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #isCut = false;

  private constructor(target: URL) {
    this.#server = createServer((near) => {
      const far = connect(Number(target.port), target.hostname);
      const ways = [
        [near, far, (chunk: string) => chunk],
        // The client is not to find a way around.
        [far, near, (chunk: string) => chunk.replace("ringfence-leader", "ringfence-hidden")],
      ] as const;
      for (const [from, to, change] of ways) {
        this.#sockets.add(from);
        from.setEncoding("latin1").on("data", (chunk: string) => {
          if (!this.#isCut) {
            to.write(change(chunk), "latin1");
          }
        });
        from.on("error", () => {}).on("close", () => this.#isCut || to.destroy());
      }
    });
  }

  static async start(url: string): Promise<Way> {
    const way = new Way(new URL(url));
    way.#server.listen(0, "127.0.0.1");
    await once(way.#server, "listening");
    return way;
  }

  get url(): string {
    const address = this.#server.address();
    return `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`;
  }

  /** From now on it swallows all. */
  cut(): void {
    this.#isCut = true;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    this.#server.close();
    await once(this.#server, "close");
  }
}
