"""The figures of /metrics under the names and labels of 0.5.11."""

import threading

_LATENCY = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
_BETWEEN = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6)
_QUEUE = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 100.0, 1000.0, 3000.0)
_BUCKETS = {
    "time_to_first_token_seconds": _LATENCY,
    "inter_token_latency_seconds": (*_BETWEEN, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0),
    "e2e_request_latency_seconds": (*_LATENCY, 600.0, 1200.0, 1800.0, 2400.0),
    "queue_time_seconds": _QUEUE,
}
_COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "cached_tokens_total",
    "num_requests_total",
    "num_aborted_requests_total",
)


class Histogram:
    """Counts by upper bound."""

    def __init__(self, bounds):
        self.bounds = bounds
        self.counts = [0] * len(bounds)
        self.total = 0
        self.sum = 0.0

    def add(self, value):
        self.total += 1
        self.sum += value
        for at, bound in enumerate(self.bounds):
            self.counts[at] += value <= bound


class Metrics:
    """Counters and histograms since the start. Safe from several threads."""

    def __init__(self, model_name):
        self._lock = threading.Lock()
        name = model_name.replace("\\", r"\\").replace('"', r"\"")
        self._base = f'engine_type="unified",{{}}model_name="{name}"'
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self._histograms = {name: Histogram(bounds) for name, bounds in _BUCKETS.items()}

    def count(self, **by):
        """Add to counters, named without `_total`."""
        with self._lock:
            for name, amount in by.items():
                self._counters[name + "_total"] += amount

    def observe(self, **seconds):
        """Add one value to histograms, named without `_seconds`."""
        with self._lock:
            for name, value in seconds.items():
                self._histograms[name + "_seconds"].add(value)

    def render(self, gauges):
        """The page in Prometheus' text format, with `gauges` (name to value) beside the rest."""
        lines = []
        with self._lock:
            for name, value in self._counters.items():
                lines += [f"# TYPE sglang:{name} counter", f"sglang:{name}{{{self._labels()}}} {float(value)}"]
            for name, found in self._histograms.items():
                ranks = name == "queue_time_seconds"
                lines.append(f"# TYPE sglang:{name} histogram")
                bounds = [*(str(bound) for bound in found.bounds), "+Inf"]
                for bound, value in zip(bounds, [*found.counts, found.total]):
                    limit = f'le="{bound}",'
                    lines.append(f"sglang:{name}_bucket{{{self._labels(ranks, limit)}}} {float(value)}")
                lines.append(f"sglang:{name}_sum{{{self._labels(ranks)}}} {found.sum}")
                lines.append(f"sglang:{name}_count{{{self._labels(ranks)}}} {float(found.total)}")
        for name, value in gauges.items():
            lines += [f"# TYPE sglang:{name} gauge", f"sglang:{name}{{{self._labels(True)}}} {float(value)}"]
        return "\n".join(lines) + "\n"

    def _labels(self, ranks=False, limit=""):
        labels = self._base.format(limit)
        return labels + ',moe_ep_rank="0",pp_rank="0",tp_rank="0"' if ranks else labels
