"""The HTTP shell: the event engine in real time behind vLLM's API."""

import asyncio
import contextlib
import hmac
import json
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from specschedule.engine import settings
from specschedule.sim import api, startup, text
from specschedule.sim.api import ApiError, Asked
from specschedule.sim.engine import Engine, Request, StepFault
from specschedule.sim.faults import Fault
from specschedule.sim.interval_stats import IntervalStats
from specschedule.sim.launch import VERSION, Launch
from specschedule.sim.logs import EngineLog
from specschedule.sim.metrics import EngineMetrics
from specschedule.sim.startup import Said
from specschedule.sim.streams import Answer, Sequence

GUARDED = ("/v1", "/v2")
"""Paths that an API key guards, as in vLLM."""

LATE = 0.25
"""Seconds that a step may end late before the engine stops catching up and says so."""

TRACE = 'Traceback (most recent call last):\n  File "core.py", in run_engine_core\n'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """One simulated server process.

    Args:
        launch: How it was launched.
        seed: Draws what differs between launches.
        log: Where vLLM's log lines go.
    """

    def __init__(self, launch: Launch, *, seed: int, log: EngineLog) -> None:
        self.launch, self.seed, self._log = launch, seed, log
        self.engine = Engine(
            launch.world, launch.settings, launch_seed=seed, on_change=self._changed
        )
        self.metrics = EngineMetrics(launch, self.engine)
        if launch.probe is not None:
            launch.probe.on_finding = self._found
        self.late_steps = 0
        """Steps that ended so late that the engine gave up their time."""
        self._sequences: dict[Request, Sequence] = {}
        self._work = asyncio.Event()
        self._ended = 0
        self._stopping = asyncio.Event()

    async def run(self, *, boot: float, announce: Callable[[str], object]) -> int:
        """Boot, serve until told to stop, and return the exit status.

        Args:
            boot: Seconds that loading takes.
            announce: Called with the address once the server listens.
        """
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, self._stopping.set)
        if self.launch.hits(Fault.SLOW_START):
            boot *= 20
        if not await self._boot(boot):
            return 0 if self._stopping.is_set() else 1
        runner = web.AppRunner(self._app(), handler_cancellation=True, access_log=None)
        await runner.setup()
        page = None
        try:
            if self.launch.probe is not None:
                page = web.AppRunner(self.launch.probe.page(), access_log=None)
                await page.setup()
                port = int(self.launch.environment[settings.SCHEDULER_PORT])
                await web.TCPSite(page, "127.0.0.1", port).start()
            site = web.TCPSite(
                runner, self.launch.host, self.launch.port, backlog=2048, shutdown_timeout=1.0
            )
            await site.start()
            address = _address(runner)
            self._say(startup.ready(self.launch, address, boot))
            self._log.web_server("Application startup complete.")
            announce(address)
            return await self._serve()
        finally:
            await runner.cleanup()
            if page is not None:
                await page.cleanup()

    async def _boot(self, seconds: float) -> bool:
        """Say what vLLM says while it loads; False when the start fails or is cut off."""
        self._say(startup.before_load(self.launch))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        if self._stopping.is_set():
            return False
        if not self._say(startup.after_load(self.launch)):
            return False
        if settings.FINGERPRINT_LOG in self.launch.worker_says:
            facts = json.dumps(startup.worker_facts(self.launch))
            self._log.printed(f"{settings.FINGERPRINT_LINE}{facts}")
        if settings.DEVICE_TIMES in self.launch.worker_says:
            told = {"absent": "a simulated engine has no device"}
            self._log.printed(f"{settings.DEVICE_LINE}{json.dumps(told)}")
        if (table := self.launch.followed) is not None:
            self._log.printed(f"{settings.TABLE_LINE}{json.dumps(table.ranges)}")
        return True

    async def _serve(self) -> int:
        steps = asyncio.ensure_future(self._step_on())
        interval = asyncio.ensure_future(self._log_stats())
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({steps, stop}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if steps.done():
                self._die(steps.exception())
                return 1
            self._log.line(
                "APIServer",
                "INFO",
                "launcher.py:254",
                "[shutdown] API server: shutdown triggered",
            )
            return 0
        finally:
            for task in (steps, stop, interval):
                task.cancel()
            for sequence in list(self._sequences.values()):
                self._drop(sequence.answer)

    def _die(self, error: BaseException | None) -> None:
        self._log.line(
            "EngineCore", "ERROR", "core.py:1133", "EngineCore encountered a fatal error."
        )
        self._log.line("EngineCore", "ERROR", "core.py:1133", f"{TRACE}{error}")
        self._log.line(
            "APIServer",
            "ERROR",
            "async_llm.py:741",
            "AsyncLLM output_handler failed.\n"
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
            "trace (above) for the root cause.",
        )

    def _say(self, lines: Any) -> bool:
        said: Said
        for said in lines:
            if said.died:
                self._log.line(said.process, said.level, said.file, "EngineCore failed to start.")
                self._log.line(said.process, said.level, said.file, TRACE + said.message)
                self._log.raw(
                    "APIServer",
                    "RuntimeError: Engine core initialization failed. See root cause above. "
                    "Failed core proc(s): {}",
                )
                return False
            self._log.line(*said[:4])
        return True

    async def _step_on(self) -> None:
        """Run steps one after another, each ending at its due time; late ones do not add up."""
        due = now = time.monotonic()
        while True:
            seconds = None if self._strikes(Fault.STALLED) else self.engine.begin(now)
            if seconds is None:
                self._work.clear()
                await self._work.wait()
                due = now = time.monotonic()
                continue
            due += seconds
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            if now - due > LATE:
                self.late_steps += 1
                due = now
            outputs = self.engine.finish(now)
            self.metrics.step(outputs, now)
            for output in outputs:
                sequence = self._sequences.get(output.request)
                if sequence is None:
                    continue
                alive = sequence.write(output)
                if output.finished:
                    self._end(sequence, now)
                elif not alive:
                    self._drop(sequence.answer)

    async def _log_stats(self) -> None:
        if self.launch.non_default.get("disable_log_stats"):
            return
        stats = IntervalStats(self.engine, time.monotonic())
        seconds = float(self.launch.environment.get("VLLM_LOG_STATS_INTERVAL", "10"))
        while True:
            await asyncio.sleep(seconds)
            for file, message in stats.lines(time.monotonic()):
                self._log.line("APIServer", "INFO", file, message)

    def _found(self, finding: str) -> None:
        said = f"{settings.FINDING_LINE}{finding}"
        self._log.line("EngineCore", "ERROR", "scheduling.py:66", said)

    def _changed(self, before: int, after: int) -> None:
        if self.launch.dies_of_fewer_tokens and after < self.launch.settings.max_tokens:
            raise StepFault("AssertionError: num_speculative_tokens == self.num_speculative_tokens")
        if self._strikes(Fault.CRASH_AT_BOUNDARY):
            raise StepFault(
                f"RuntimeError: The size of tensor a ({1 + after}) must match the size of tensor b "
                f"({1 + before}) at non-singleton dimension 0"
            )

    def _strikes(self, fault: Fault) -> bool:
        return self.launch.hits(fault) and self._ended >= self.launch.planted.faults[fault]

    def _end(self, sequence: Sequence, now: float) -> None:
        del self._sequences[sequence.request]
        self._ended += 1
        answer = sequence.answer
        self.metrics.end(sequence.request, sequence.end, now, max_tokens=answer.asked.max_tokens)
        answer.open -= 1
        if not answer.open and not answer.done.done():
            answer.done.set_result(None)

    def _drop(self, answer: Answer) -> None:
        """Abort what is left of an answer."""
        now = time.monotonic()
        for sequence in answer.sequences:
            if self._sequences.pop(sequence.request, None) is not None:
                self.engine.abort(sequence.request)
                self.metrics.end(sequence.request, "abort", now, max_tokens=answer.asked.max_tokens)
        if not answer.done.done():
            answer.done.cancel()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=256 * 2**20, middlewares=[self._authenticate])
        routes: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/completions", self._completions),
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/tokenize", self._tokenize),
            ("GET", "/v1/models", self._models),
            ("GET", "/health", self._health),
            ("GET", "/ping", self._health),
            ("GET", "/metrics", self._metrics),
            ("GET", "/version", self._version),
            ("GET", "/sim", self._about),
        ]
        if self.launch.development:
            routes += [
                ("GET", "/server_info", self._server_info),
                ("POST", "/reset_prefix_cache", self._reset_prefix_cache),
            ]
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        return app

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        keys = self.launch.api_keys
        if keys and request.path.startswith(GUARDED):
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            known = any(hmac.compare_digest(given.encode(), key.encode()) for key in keys)
            if scheme.lower() != "bearer" or not known:
                return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except ApiError as error:
            return web.json_response(error.body, status=error.status)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        arrived = time.monotonic()
        asked = api.read(
            await request.read(),
            request.headers.get("Content-Type", ""),
            chat=chat,
            served=self.launch.served,
            max_model_len=self.launch.max_model_len,
        )
        if self._strikes(Fault.ERRORS):
            raise ApiError(
                500,
                "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                kind="InternalServerError",
            )
        if not asked.stream:
            answer = self._ask(asked, None, arrived)
            await self._finished(answer)
            return web.json_response(answer.whole())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        answer = self._ask(asked, request.transport, arrived)
        await self._finished(answer)
        await response.write(answer.last_events())
        return response

    async def _finished(self, answer: Answer) -> None:
        try:
            await answer.done
        finally:
            self._drop(answer)

    def _ask(self, asked: Asked, transport: asyncio.Transport | None, arrived: float) -> Answer:
        name = f"{'chatcmpl' if asked.chat else 'cmpl'}-{uuid.uuid4().hex}"
        answer = Answer(
            asked,
            name,
            transport,
            fingerprint=startup.fingerprint(self.launch),
            differs=self.launch.hits(Fault.EQUIVALENCE),
            differs_at=self.launch.planted.faults[Fault.EQUIVALENCE_IN_BAND]
            if self.launch.hits(Fault.EQUIVALENCE_IN_BAND)
            else None,
        )
        for index, prompt in enumerate(asked.prompts):
            length, end = asked.length(prompt)
            seed = asked.prompt_seed(prompt)
            unit = Request(
                prompt_tokens=text.tokens_of(prompt),
                output_tokens=length,
                seed=seed,
                arrived=arrived,
                prefix=text.blocks_of(prompt),
            )
            sequence = Sequence(answer, index, unit, seed, end)
            answer.sequences.append(sequence)
            self._sequences[unit] = sequence
            if self.launch.probe is not None:
                self.launch.probe.switch(asked.extra)
            self.engine.add(unit)
        self._work.set()
        return answer

    async def _tokenize(self, request: web.Request) -> web.Response:
        ids = api.counted(
            await request.read(),
            request.headers.get("Content-Type", ""),
            served=self.launch.served,
        )
        return web.json_response(
            {
                "count": len(ids),
                "max_model_len": self.launch.max_model_len,
                "tokens": ids,
                "token_strs": None,
            }
        )

    async def _models(self, request: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "vllm",
                "root": self.launch.model,
                "parent": None,
                "max_model_len": self.launch.max_model_len,
                "permission": [],
            }
            for name in self.launch.served
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self.metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _server_info(self, request: web.Request) -> web.Response:
        info = startup.server_info(self.launch)
        if request.query.get("config_format", "text") == "text":
            info["vllm_config"] = str(info["vllm_config"])
        return web.json_response(info)

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        return web.json_response({"success": self.engine.cache.reset()})

    async def _about(self, request: web.Request) -> web.Response:
        """What no vLLM would tell: the world and the noise of this launch."""
        return web.json_response(
            {
                "world": self.launch.world.name,
                "source": self.launch.world.source,
                "seed": self.seed,
                "launchFactor": self.engine.launch_factor,
                "steps": self.engine.counts.steps,
                "lateSteps": self.late_steps,
                "graphs": self.engine.settings.graphs.value,
                "faults": [str(fault) for fault in self.launch.planted.faults],
            }
        )


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
