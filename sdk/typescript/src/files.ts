/**
 * The files of TLS. They are read again when they have changed; if they cannot be used then, the old ones stay in use.
 *
 * OpenSSL takes any file as one with authorities, also an empty one, and a key of another certificate: each connection would fail then. So
 * everything is checked here, and the error names the file.
 */
import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { createSecureContext, type SecureContext } from "node:tls";
import { InvalidError } from "./errors.js";
import { textOf, type Warn } from "./warn.js";

/** By the name of their option. */
interface Paths {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
}

const CERTIFICATE = /-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----[^-]*-----END (?:TRUSTED |X509 )?CERTIFICATE-----/g;

export class Files {
  readonly #paths: Paths;
  readonly #warn: Warn;
  #stamp: string;
  #context: SecureContext;

  /** Throws an `InvalidError`. */
  constructor(paths: Paths, warn: Warn) {
    this.#paths = paths;
    this.#warn = warn;
    this.#stamp = this.#look();
    this.#context = load(paths);
  }

  context(): SecureContext {
    const stamp = this.#look();
    if (stamp !== this.#stamp) {
      this.#stamp = stamp;
      try {
        this.#context = load(this.#paths);
      } catch (error) {
        // They may be written just now.
        this.#warn("RINGFENCE_FILES", `the old files of TLS stay in use: ${textOf(error)}`);
      }
    }
    return this.#context;
  }

  #look(): string {
    return Object.values(this.#paths)
      .map((path) => {
        try {
          const { mtimeMs, size, ino } = statSync(path);
          return `${mtimeMs} ${size} ${ino}`;
        } catch {
          return "missing";
        }
      })
      .join();
  }
}

function load({ ca, cert, key }: Paths): SecureContext {
  const authorities = ca === undefined ? {} : { ca: certificates("ca", ca).text };
  if (cert === undefined || key === undefined) {
    return context("ca", ca ?? "", authorities);
  }
  const { text, first } = certificates("cert", cert);
  const own = read("key", key);
  let matches: boolean;
  try {
    matches = first.checkPrivateKey(createPrivateKey(own));
  } catch (error) {
    const isEncrypted = /ENCRYPTED/.test(own);
    const why = isEncrypted ? "it is encrypted, and the client has no passphrase" : (error as Error).message;
    throw new InvalidError("key", `${key}: no private key in PEM: ${why}`);
  }
  if (!matches) {
    throw new InvalidError("key", `${key}: it is not the key of the certificate in ${cert}`);
  }
  return context("cert", cert, { ...authorities, cert: text, key: own });
}

function context(field: string, path: string, options: { ca?: string; cert?: string; key?: string }): SecureContext {
  try {
    return createSecureContext({ ...options, minVersion: "TLSv1.2" });
  } catch (error) {
    throw new InvalidError(field, `${path}: ${(error as Error).message}`);
  }
}

/** All certificates of a file. */
function certificates(field: string, path: string): { text: string; first: X509Certificate } {
  const text = read(field, path);
  const parsed = [...text.matchAll(CERTIFICATE)].map(([pem], index) => {
    try {
      return new X509Certificate(pem);
    } catch (error) {
      throw new InvalidError(field, `${path}: certificate ${index + 1} is broken: ${(error as Error).message}`);
    }
  });
  const [first] = parsed;
  if (first === undefined) {
    throw new InvalidError(field, `${path}: it has no certificate in PEM`);
  }
  return { text, first };
}

function read(field: string, path: string): string {
  try {
    return readFileSync(path, "latin1");
  } catch (error) {
    throw new InvalidError(field, (error as Error).message);
  }
}
