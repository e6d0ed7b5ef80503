"""The HTTP side: routes, keys, plain and streamed answers."""

import http.server
import json
import os
import socket
import time

from . import answers, shapes
from .engine import STARTING, UNHEALTHY, UP
from .journal import say, uvicorn

_OPEN = ("/health", "/metrics", "/ping")
_ADMIN = ("/flush_cache",)
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Server(http.server.ThreadingHTTPServer):
    """Listens on one address for one engine. Raises OSError if the address is taken."""

    daemon_threads = True
    request_queue_size = 2048

    def __init__(self, host, port, engine):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.engine = engine
        super().__init__((host, port), Handler)

    def server_bind(self):
        # The parent class also asks DNS for the machine's name, which can take long and serves nothing here.
        super(http.server.HTTPServer, self).server_bind()

    def handle_error(self, request, client_address):
        """A client that went away is no error."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "uvicorn"
    sys_version = ""

    def do_GET(self):
        self._route(_GET)

    def do_POST(self):
        self._route(_POST)

    @property
    def engine(self):
        return self.server.engine

    def log_request(self, code="-", size="-"):
        status = http.HTTPStatus(code)
        host, port = self.client_address[:2]
        uvicorn("INFO", f'{host}:{port} - "{self.command} {self.path} HTTP/1.1" {status.value} {status.phrase}')

    def log_error(self, format, *args):
        """The access line says it already."""

    def _route(self, routes):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        handler = routes.get(path)
        if path == "/metrics" and not self.engine.settings["enable_metrics"]:
            self._json({"detail": "Not Found"}, 404)
        elif handler is None:
            known = path in _GET or path in _POST
            self._json({"detail": "Method Not Allowed" if known else "Not Found"}, 405 if known else 404)
        elif not self._allowed(path):
            self._json({"error": "Unauthorized"}, 401)
        else:
            handler(self)

    def _allowed(self, path):
        s = self.engine.settings
        key = (s["admin_api_key"] if path in _ADMIN else None) or s["api_key"]
        return not key or path.startswith(_OPEN) or self.headers.get("Authorization") == f"Bearer {key}"

    def _send(self, data, status=200, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _json(self, value, status=200):
        self._send(json.dumps(value).encode(), status)

    def _health(self):
        engine, cheap = self.engine, os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower()
        if engine.leaving:
            say("Health check request received during shutdown. Returning 503.")
            return self._send(b"", 503)
        if engine.status == STARTING:
            return self._send(b"", 503)
        if cheap in ("0", "false") and self.path == "/health":
            return self._send(b"")
        limit, began = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20")), time.localtime()
        alive = engine.scheduler.alive(limit)
        engine.status = UP if alive else UNHEALTHY
        if not alive:
            say(
                f"Health check failed. Server couldn't get a response from detokenizer for last {limit:g} seconds."
                f" tic start time: {time.strftime('%H:%M:%S', began)}."
            )
        return self._send(b"", 200 if alive else 503)

    def _model_info(self):
        s, model = self.engine.settings, self.engine.startup.model
        self._json(
            {
                "model_path": s["model_path"],
                "tokenizer_path": s["tokenizer_path"],
                "is_generation": True,
                "preferred_sampling_params": s["preferred_sampling_params"],
                "weight_version": s["weight_version"],
                "has_image_understanding": "vision_config" in model.config,
                "has_audio_understanding": False,
                "model_type": model.config.get("model_type"),
                "architectures": model.architectures,
            }
        )

    def _server_info(self):
        self._json(self.engine.info())

    def _models(self):
        name = self.engine.settings["served_model_name"]
        card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": name}
        card.update(parent=None, max_model_len=self.engine.startup.context)
        self._json({"object": "list", "data": [card]})

    def _loads(self):
        now = self.engine.load()
        usage = max(now.pop("full_token_usage"), now.pop("mamba_usage"))
        now.update(dp_rank=0, token_usage=usage, cache_hit_rate=0.0, utilization=0.0)
        now["num_total_reqs"] = now["num_running_reqs"] + now["num_waiting_reqs"]
        aggregate = {
            "total_running_reqs": now["num_running_reqs"],
            "total_waiting_reqs": now["num_waiting_reqs"],
            "total_reqs": now["num_total_reqs"],
            "total_used_tokens": now["num_used_tokens"],
            "total_tokens": now["num_total_tokens"],
            "avg_token_usage": usage,
            "avg_throughput": now["gen_throughput"],
            "avg_utilization": 0.0,
        }
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        version = self.engine.info()["version"]
        self._json({"timestamp": stamp, "version": version, "dp_rank_count": 1, "loads": [now], "aggregate": aggregate})

    def _metrics(self):
        page = self.engine.metrics.render(self.engine.gauges())
        self._send(page.encode(), kind="text/plain; version=0.0.4; charset=utf-8")

    def _flush(self):
        busy = bool(self.engine.in_flight)
        text = "Flush cache failed.\n" if busy else _FLUSHED
        self._send(text.encode(), 400 if busy else 200, "text/plain; charset=utf-8")

    def _read(self, reader):
        """The body and its work, or None after an answer of 400."""
        try:
            body = json.loads(self.body)
            if not isinstance(body, dict):
                raise shapes.BadRequest("the body must be a JSON object")
            return body, reader(body, self.engine.settings, self.engine.startup.context)
        except (ValueError, shapes.BadRequest) as error:
            refusal = {"object": "error", "message": str(error), "type": "BadRequestError", "param": None, "code": 400}
            self._json(refusal, 400)
            return None

    def _run(self, works):
        """The output of every prompt, and the id that its request had."""
        outputs, names = [], []
        for work in works:
            output = self.engine.complete(work.text, work.params, work.thinks)
            with self.engine.admitted(work.tokens, output) as name:
                self.engine.pace(output.text)
            outputs.append(output)
            names.append(name)
        return outputs, names

    def _begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, value):
        data = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _stream(self, work, each, last):
        """Stream one prompt's answer: `each` makes an event of every piece, `last` the events of the end."""
        output = self.engine.complete(work.text, work.params, work.thinks)
        with self.engine.admitted(work.tokens, output) as name:
            self._begin_stream()
            for piece in answers.pieces(output.text):
                self.engine.pace(piece)
                event = each(piece, output, name)
                if event is not None:
                    self._event(event)
        for event in last(output, name):
            self._event(event)
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _generate(self):
        found = self._read(shapes.read_generate)
        if not found:
            return None
        (body, works), settings, began = found, self.engine.settings, time.monotonic()
        single = not isinstance(body.get("text"), list) and not isinstance((body.get("input_ids") or [0])[0], list)

        def made(work, output, name, text=None):
            return shapes.generate_answer(work, output, name, body, settings, time.monotonic() - began, text)

        if body.get("stream") and single:
            text = []

            def each(piece, output, name):
                text.append(piece)
                return made(works[0], output, name, "".join(text))

            return self._stream(works[0], each, lambda output, name: [made(works[0], output, name)])
        results = [made(*found) for found in zip(works, *self._run(works))]
        return self._json(results[0] if single else results)

    def _completions(self):
        found = self._read(shapes.read_completion)
        if not found:
            return None
        (body, works), settings = found, self.engine.settings
        if not body.get("stream"):
            outputs, _ = self._run(works)
            return self._json(shapes.completion_answer(works, outputs, body, settings))
        return self._stream(
            works[0],
            lambda piece, output, name: shapes.completion_chunk(body, settings, piece),
            lambda output, name: self._ends(
                shapes.completion_chunk(body, settings, output=output), works, output, body
            ),
        )

    def _chat(self):
        found = self._read(shapes.read_chat)
        if not found:
            return None
        (body, works), settings = found, self.engine.settings
        if not body.get("stream"):
            outputs, _ = self._run(works)
            return self._json(shapes.chat_answer(works, outputs, body, settings))
        thinking = bool(works[0].thinks and settings["reasoning_parser"])

        def each(piece, output, name):
            nonlocal thinking
            if thinking and "</think>" in piece:
                thinking = False
                return None
            kind = "reasoning_content" if thinking else "content"
            return shapes.chat_chunk(body, settings, {kind: piece})

        return self._stream(
            works[0],
            each,
            lambda output, name: self._ends(shapes.chat_chunk(body, settings, {}, output), works, output, body),
        )

    def _ends(self, chunk, works, output, body):
        """The last events of a stream: the finish reason, and the usage where it was asked for."""
        if not (body.get("stream_options") or {}).get("include_usage"):
            return [chunk]
        return [chunk, {**chunk, "choices": [], "usage": shapes.usage(works, [output])}]


_GET = {
    "/health": Handler._health,
    "/health_generate": Handler._health,
    "/ping": Handler._health,
    "/model_info": Handler._model_info,
    "/get_model_info": Handler._model_info,
    "/server_info": Handler._server_info,
    "/get_server_info": Handler._server_info,
    "/v1/models": Handler._models,
    "/v1/loads": Handler._loads,
    "/metrics": Handler._metrics,
    "/flush_cache": Handler._flush,
}
_POST = {
    "/generate": Handler._generate,
    "/v1/completions": Handler._completions,
    "/v1/chat/completions": Handler._chat,
    "/flush_cache": Handler._flush,
}
