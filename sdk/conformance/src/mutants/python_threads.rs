//! Faults of the Python client for threads, in what the client for asyncio does not offer.

use super::mutants;

mutants! {
    "interrupted-call-goes-on" "_runner.py"
        "            try:\n                self.call_soon(self._leave, call)\n            finally:\n                self.call_soon(self._leave, call)\n            raise"
        => "            raise"
        fails ["interrupted-wait-leaves-the-queue"];
    "cancelled-is-not-released" "_acquire.py"
        "        except asyncio.CancelledError:\n            if self._is_armed:"
        => "        except asyncio.CancelledError:\n            self._is_armed = False\n            if self._is_armed:"
        fails ["interrupted-acquire-gives-back-its-grant"];
    "interrupted-body-keeps-its-lease" "_sync.py"
        "            if not self._held.is_released:\n                self._release(None)"
        => "            if not self._held.is_released and not isinstance(error, KeyboardInterrupt):\n                self._release(None)"
        fails ["interrupted-body-is-released"];
    "interrupt-stops-the-race" "_sync.py"
        "            except Stopped:\n                break"
        => "            except (Stopped, KeyboardInterrupt):\n                break"
        fails ["interrupted-lead-is-released"];
    "interrupt-is-swallowed" "_sync.py"
        "        self._runner.wait(result, timeout)"
        => "        try:\n            self._runner.wait(result, timeout)\n        except KeyboardInterrupt:\n            pass"
        fails ["interrupted-release-goes-on"];
    "interrupt-ends-the-releases" "_runner.py"
        "    def _wait(self, done: Flag, timeout: float | None, stop: Stop | None) -> None:\n"
        => "    def _wait(self, done: Flag, timeout: float | None, stop: Stop | None) -> None:\n        try:\n            self._wait_for(done, timeout, stop)\n        except KeyboardInterrupt:\n            releases = self._engines[\"engine\"].cluster.releases\n            releases._open and self.call_soon(releases.close)\n            raise\n\n    def _wait_for(self, done: Flag, timeout: float | None, stop: Stop | None) -> None:\n"
        fails ["interrupted-release-goes-on" "interrupted-twice-is-released"];
    "interrupted-close-ends" "_runner.py"
        "            self._is_over.wait(within + _LATER)\n        return engine.left()"
        => "            try:\n                self._is_over.wait(within + _LATER)\n            except KeyboardInterrupt:\n                self.call_soon(engine.cluster.releases.close)\n                raise\n        return engine.left()"
        fails ["interrupted-close-goes-on"];
    "callback-on-the-loop" "_sync.py"
        "            if not begin(partial(guarded, told), \"ringfence-lost\"):"
        => "            guarded(told)\n            if False:"
        fails ["on-lost-blocks-others-are-renewed"];
}
