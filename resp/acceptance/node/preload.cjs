// Leads the tests of the libraries' authors to the server, wherever they look for it.
const net = require("node:net");

const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function (...given) {
  // What net.connect() has made of its arguments is an array in an array.
  const options = Array.isArray(given[0]) ? given[0][0] : given[0];
  if (options?.port === undefined) throw new Error("a test connects in a way that is not known here");
  Object.assign(options, { port: Number(process.env.LOCKS_PORT), host: process.env.LOCKS_HOST });
  return connect.apply(this, given);
};

if (process.env.LOCKS_HTTP !== "") {
  // The tests make a set, in front of which a lock fails. Those that need it are listed as deviations.
  const succeed = (...given) => given.at(-1)(null);
  for (const client of [require("redis").RedisClient, require("ioredis")]) client.prototype.sadd = succeed;
}
