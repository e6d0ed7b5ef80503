"""The closed loop against a real server: how much it asks at a time, what it asks, and what it makes of bad answers."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sglang_pve import load

WORK = {"mean_input_tokens": 12, "mean_output_tokens": 50, "concurrency": 6, "shared_prefix_tokens": 4}
TOOK_S = 0.05


class Server(ThreadingHTTPServer):
    """Answers after TOOK_S; `refuse` says with which status and text instead."""

    daemon_threads = True
    refuse = None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies, self.running, self.most, self.lock = [], 0, 0, threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
        time.sleep(TOOK_S)
        with self.server.lock:
            self.server.running -= 1
        status, answer = self.server.refuse or (
            200,
            {"text": "", "meta_info": {"completion_tokens": body["sampling_params"]["max_new_tokens"]}},
        )
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args):
        pass


@contextmanager
def serving(refuse=None):
    server = Server()
    server.refuse = refuse
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_as_many_run_at_a_time_as_the_workload_says_and_the_warm_up_is_not_counted():
    with serving() as server:
        found = load.measure("127.0.0.1", server.server_port, WORK, 0.6)
    assert server.most == WORK["concurrency"]
    assert 0 < found["requests"] <= len(server.bodies) - WORK["concurrency"]
    assert found["failed"] == 0 and found["errors"] == []
    assert found["mean_latency_s"] >= TOOK_S
    # No more than so many can have been answered in that time.
    assert found["output_tokens_per_s"] <= 1.5 * WORK["concurrency"] * WORK["mean_output_tokens"] / TOOK_S


def test_prompts_have_the_mean_length_share_their_prefix_and_are_the_same_in_every_run():
    runs = []
    for _ in range(2):
        with serving() as server:
            load.measure("0.0.0.0", server.server_port, WORK, 0.3)
        runs.append(server.bodies)
    for bodies in runs:
        prompts = [body["input_ids"] for body in bodies]
        assert {len(prompt) for prompt in prompts} == {WORK["mean_input_tokens"]}
        assert len({tuple(prompt[:4]) for prompt in prompts}) == 1
        assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
        assert {body["sampling_params"]["max_new_tokens"] for body in bodies} == {WORK["mean_output_tokens"]}
    first, second = ({tuple(body["input_ids"]) for body in bodies[:6]} for bodies in runs)
    assert first == second


@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        ((503, {"error": "the queue is full"}), "503 .*the queue is full"),
        ((200, {"meta_info": {}}), "completion_tokens"),
    ],
)
def test_a_server_that_answers_nothing_of_use_is_an_error_in_its_own_words(refuse, words):
    with serving(refuse) as server, pytest.raises(load.LoadError, match=words):
        load.measure("127.0.0.1", server.server_port, WORK, 0.3)


def test_nobody_at_the_port_is_an_error():
    with serving() as server:
        port = server.server_port
    with pytest.raises(load.LoadError, match="0 answers"):
        load.measure("127.0.0.1", port, WORK, 0.2)


def test_requests_that_fail_beside_others_are_counted_and_named():
    with serving() as server:
        timer = threading.Timer(0.5, setattr, (server, "refuse", (500, {"error": "out of memory"})))
        timer.start()
        found = load.measure("127.0.0.1", server.server_port, WORK, 0.8)
        timer.join()
    assert found["requests"] > 0 and found["failed"] > 0
    assert "out of memory" in found["errors"][0]
