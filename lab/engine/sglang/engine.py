"""A running engine: its settings, its scheduler, what is in flight, and what it reports about itself."""

import contextlib
import os
import threading
import time
import uuid

from . import __version__, answers
from .journal import say
from .metrics import Metrics

STARTING, UP, UNHEALTHY = "Starting", "Up", "UnHealthy"
# How long a token takes by the attention that was asked for, against any other: so that a flag changes the speed.
_PACE = {"triton": 0.5}


class Engine:
    """One server. `status`: STARTING, UP or UNHEALTHY; `leaving`: it was told to stop and takes no health checks."""

    def __init__(self, settings, startup, scheduler, pools, fault):
        self.settings = settings
        self.startup = startup
        self.scheduler = scheduler
        self.pools = pools
        self.metrics = Metrics(settings["served_model_name"])
        self.status = STARTING
        self.leaving = False
        self.garbage = fault.kind == "garbage" or not startup.complete
        self.running = {}
        self.waiting = {}
        self.began = time.monotonic()
        self._slots = threading.Semaphore(pools["running"])
        self._lock = threading.Lock()
        pace = _PACE.get(settings["attention_backend"], 1.0)
        self._token_seconds = pace * float(os.environ.get("SGLANG_LAB_TOKEN_SECONDS", "0.001"))
        self._throughput = 0.0
        self.accept_length = 0.0

    @property
    def in_flight(self):
        """Ids of the requests that are not finished."""
        with self._lock:
            return [*self.running, *self.waiting]

    def draft_accepts(self):
        """Mean tokens a step: what the simulation asks for where the head has weights, else one."""
        draft = self.settings["speculative_num_draft_tokens"]
        if not self.settings["speculative_algorithm"]:
            return 0.0
        if not self.startup.has_draft:
            return 1.0
        return min(float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "3.3")), float(draft))

    @contextlib.contextmanager
    def admitted(self, prompt_tokens, output):
        """Hold one of the server's places while the body runs; yields the request's id."""
        name, came = uuid.uuid4().hex, time.monotonic()
        with self._lock:
            self.waiting[name] = prompt_tokens
        try:
            with self._slots:
                with self._lock:
                    self.running[name] = self.waiting.pop(name) + len(output.ids)
                started = time.monotonic()
                self._log_prefill(prompt_tokens)
                self.scheduler.forward()
                first = time.monotonic()
                yield name
                self._finished(prompt_tokens, output, came, started, first)
        except BaseException:
            self.metrics.count(num_aborted_requests=1)
            raise
        finally:
            with self._lock:
                self.running.pop(name, None)
                self.waiting.pop(name, None)

    def pace(self, text):
        """Wait as long as the tokens of a text take."""
        time.sleep(len(text.encode()) * self._token_seconds / max(1.0, self.draft_accepts()))

    def _finished(self, prompt_tokens, output, came, started, first):
        now, tokens = time.monotonic(), len(output.ids)
        self.accept_length = self.draft_accepts()
        self._throughput = tokens / max(now - first, 1e-6)
        self.metrics.count(prompt_tokens=prompt_tokens, generation_tokens=tokens, num_requests=1)
        self.metrics.observe(
            time_to_first_token=first - came,
            e2e_request_latency=now - came,
            inter_token_latency=(now - first) / tokens,
            queue_time=started - came,
        )
        if tokens >= self.settings["decode_log_interval"]:
            self._log_decode()

    def load(self):
        """Use of the pools at this moment, under the names of /v1/loads and /metrics."""
        with self._lock:
            used, queued = sum(self.running.values()), sum(self.waiting.values())
            running, waiting = len(self.running), len(self.waiting)
        tokens, slots = self.pools["tokens"], self.pools["slots"]
        return {
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_used_tokens": used,
            "num_total_tokens": used + queued,
            "max_total_num_tokens": tokens,
            "full_token_usage": round(used / tokens, 4),
            "mamba_usage": round(min(1.0, running / slots), 4),
            "gen_throughput": round(self._throughput, 2),
            "max_running_requests": self.pools["running"],
        }

    def _log_prefill(self, tokens):
        now = self.load()
        say(
            f"Prefill batch, #new-seq: 1, #new-token: {tokens}, #cached-token: 0, full token usage:"
            f" {now['full_token_usage']:.2f}, mamba usage: {now['mamba_usage']:.2f}, #running-req:"
            f" {now['num_running_reqs'] - 1}, #queue-req: {now['num_waiting_reqs']}, #pending-token: 0,"
            f" cuda graph: False, input throughput (token/s): {tokens / 0.05:.2f}"
        )

    def _log_decode(self):
        now, accept = self.load(), ""
        if self.accept_length:
            rate = (self.accept_length - 1) / max(1, self.settings["speculative_num_steps"] or 1)
            accept = f" accept len: {self.accept_length:.2f}, accept rate: {rate:.2f},"
        say(
            f"Decode batch, #running-req: {now['num_running_reqs']}, #full token: {now['num_used_tokens']},"
            f" full token usage: {now['full_token_usage']:.2f}, mamba num: {now['num_running_reqs']}, mamba usage:"
            f" {now['mamba_usage']:.2f},{accept} cuda graph: True, gen throughput (token/s):"
            f" {now['gen_throughput']:.2f}, #queue-req: {now['num_waiting_reqs']}"
        )

    def gauges(self):
        """Gauges of /metrics."""
        now, s = self.load(), self.settings
        free = now["max_total_num_tokens"] - now["num_used_tokens"]
        steps = s["speculative_num_steps"] or 1
        return {
            "max_total_num_tokens": now["max_total_num_tokens"],
            "engine_startup_time": 0.0,
            "engine_load_weights_time": 0.0,
            "page_size": s["page_size"],
            "num_pages": now["max_total_num_tokens"] // s["page_size"],
            "context_len": self.startup.context,
            "startup_available_gpu_memory_gb": self.startup.free_gib,
            "num_running_reqs": now["num_running_reqs"],
            "num_queue_reqs": now["num_waiting_reqs"],
            "num_retracted_reqs": 0,
            "num_paused_reqs": 0,
            "gen_throughput": now["gen_throughput"],
            "cache_hit_rate": 0.0,
            "token_usage": max(now["full_token_usage"], now["mamba_usage"]),
            "full_token_usage": now["full_token_usage"],
            "mamba_usage": now["mamba_usage"],
            "num_used_tokens": now["num_used_tokens"],
            "kv_available_tokens": free,
            "kv_evictable_tokens": 0,
            "kv_used_tokens": now["num_used_tokens"],
            "spec_accept_length": self.accept_length,
            "spec_accept_rate": max(0.0, self.accept_length - 1) / steps,
            "utilization": 0.0,
            "new_token_ratio": 0.7,
            "is_cuda_graph": 0.0,
        }

    def info(self):
        """The answer of /server_info: the settings as given, the pools as found, the scheduler's own view."""
        s, pools, startup = self.settings, self.pools, self.startup
        inside = {
            **s,
            "max_mamba_cache_size": pools["slots"],
            "last_gen_throughput": self._throughput,
            "memory_usage": {
                "weight": round(startup.weights_gib, 2),
                "kvcache": round(startup.kv_gib, 2),
                "token_capacity": pools["tokens"],
                "graph": round(startup.graph_gib, 2),
            },
            "effective_max_running_requests_per_dp": pools["running"],
        }
        if self.accept_length:
            inside["avg_spec_accept_length"] = self.accept_length
        return {
            **s,
            "status": "ready",
            "max_total_num_tokens": pools["tokens"],
            "max_req_input_len": min(startup.context, pools["tokens"]) - 6,
            "internal_states": [inside],
            "version": __version__,
        }

    def complete(self, prompt, params, thinking=False):
        """An answers.Output for a prompt, by sampling parameters in the names of /generate."""
        stop = params.get("stop") or ()
        return answers.complete(
            prompt,
            max(1, int(params.get("max_new_tokens") or 128)),
            bool(params.get("ignore_eos")),
            [stop] if isinstance(stop, str) else stop,
            self.garbage,
            thinking,
        )
