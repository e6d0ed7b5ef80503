"""A server's life in its parent process: start, serve, drain, end."""

import http.client
import json
import os
import signal
import sys
import threading
import time
import traceback

from . import card as cards
from . import faults, flags
from .checkpoint import Model
from .engine import UNHEALTHY, UP, Engine
from .http_server import Server
from .journal import raw, say, uvicorn
from .scheduler import Scheduler
from .settings import resolve
from .startup import Startup

STAND_IN = "This is the lab's stand-in for SGLang 0.5.11: no model, no GPU work."
# Share of the start's time that the first requests take; the scheduler's steps take the rest.
_WARMUP_SHARE = 0.1
# How often a server that was told to stop looks for unfinished requests; the real one looks every 5 s.
_DRAIN_SECONDS = 0.5


def run(argv):
    """Be a server until something ends it. Raises the engine's own error, or leaves with argparse's status."""
    fault = faults.read()
    fault.reach("import")
    values = flags.parse(argv)
    card = cards.visible_card(values["base_gpu_id"])
    model = Model(values["model_path"])
    fault.reach("args")
    settings = resolve(values, card, model)
    say(STAND_IN)
    say("Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit")
    say("server_args=ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in settings.items()) + ")")
    raw("[transformers] The `use_fast` parameter is deprecated and will be removed in a future version.")
    say("No HuggingFace chat template found")

    startup = Startup(settings, card, model)
    seconds = float(os.environ.get("SGLANG_LAB_START_SECONDS", "1.5"))
    signal.signal(signal.SIGQUIT, _child_failed_early)
    scheduler = Scheduler(settings, card, fault, startup.used_mib, seconds)
    _children.append(scheduler.process)
    try:
        pools = scheduler.wait_ready()
        _serve(Engine(settings, startup, scheduler, pools, fault), fault, seconds)
    finally:
        scheduler.process.kill()


_children = []


def _kill_tree():
    """End as the real engine does, children first, so that the service manager sees signal 9."""
    for process in _children:
        process.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def _child_failed_early(number, frame):
    say("Received sigquit from a child process. It usually means the child failed.")
    _kill_tree()


def _serve(engine, fault, seconds):
    s = engine.settings
    uvicorn("INFO", f"Started server process [{os.getpid()}]")
    uvicorn("INFO", "Waiting for application startup.")
    say("Using default chat sampling params from model generation config: {'temperature': 1.0, 'top_k': 20}")
    uvicorn("INFO", "Application startup complete.")
    try:
        server = Server(s["host"], s["port"], engine)
    except OSError as error:
        address = (s["host"], s["port"])
        uvicorn(
            "ERROR",
            f"[Errno {error.errno}] error while attempting to bind on address {address}: {error.strerror.lower()}",
        )
        uvicorn("INFO", "Waiting for application shutdown.")
        uvicorn("INFO", "Application shutdown complete.")
        sys.exit(1)
    uvicorn("INFO", f"Uvicorn running on http://{s['host']}:{s['port']} (Press CTRL+C to quit)")
    signal.signal(signal.SIGQUIT, lambda number, frame: _child_failed())
    signal.signal(signal.SIGTERM, lambda number, frame: _told_to_stop(engine))
    for work in (_watch, _warm_up):
        threading.Thread(target=work, args=(engine, fault, seconds), daemon=True).start()
    server.serve_forever(poll_interval=60)


def _child_failed():
    say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
    _kill_tree()


def _watch(engine, fault, seconds):
    process = engine.scheduler.process
    code = process.wait()
    if code:
        say(
            f"Subprocess scheduler_0 (pid={process.pid}) crashed with exit code {code}."
            " Triggering SIGQUIT for cleanup..."
        )
        os.kill(os.getpid(), signal.SIGQUIT)


def _warm_up(engine, fault, seconds):
    s = engine.settings
    if not s["skip_server_warmup"]:
        try:
            fault.reach("warmup")
            time.sleep(seconds * _WARMUP_SHARE)
            _request(s, "GET", "/model_info")
            if s["skip_tokenizer_init"]:
                body = {"input_ids": [10, 11, 12], "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
                _request(s, "POST", "/generate", body)
            else:
                message = {"role": "user", "content": "Describe the image."}
                _request(s, "POST", "/v1/chat/completions", {"messages": [message], "max_tokens": 8})
        except Exception:
            say("Initialization failed. warmup error: " + traceback.format_exc())
            _kill_tree()
    engine.status = UP
    say("The server is fired up and ready to roll!")
    engine.scheduler.forward("ready")


def _request(settings, method, path, body=None):
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings["host"], settings["host"])
    connection = http.client.HTTPConnection(host, settings["port"], timeout=600)
    headers = {"Authorization": f"Bearer {settings['api_key']}"} if settings["api_key"] else {}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, f"res=<Response [{answer.status}]>, res.text={text!r}"


def _told_to_stop(engine):
    say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    if not engine.leaving:
        engine.leaving = True
        threading.Thread(target=_drain, args=(engine,), daemon=True).start()


def _drain(engine):
    """Wait for the last request, however long it takes, unless the server is hung or told to hurry."""
    while True:
        time.sleep(_DRAIN_SECONDS)
        if engine.status == UNHEALTHY:
            say("Signal SIGTERM received while health check failed. Force exiting.")
            break
        if os.environ.get("SGL_FORCE_SHUTDOWN", "").lower() in ("1", "true"):
            say("Signal SIGTERM received while force shutdown flag set. Force exiting.")
            break
        left = engine.in_flight
        say(
            f"Gracefully exiting... Remaining number of requests {len(left)}. Remaining requests remaining_rids={left}."
        )
        if not left:
            break
    _kill_tree()
