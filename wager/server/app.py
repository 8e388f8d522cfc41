"""The application: routes, refusals and doors put together. `wager serve` and the tests call `make_app`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from wager import __version__
from wager.errors import WagerError
from wager.server import chat, completions, messages, operations, responses
from wager.server.doors import GONE, Doors, Visit, visit_of
from wager.server.problems import problem_of
from wager.server.service import Service
from wager.server_config import listed

PAGE = Path(__file__).parent / "page"
ROUTERS = (chat.router, completions.router, responses.router, messages.router, operations.router)
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:;"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageParts(StaticFiles):
    """The files of the page, with its headers."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(_PAGE_HEADERS)
        return response


def make_app(service: Service) -> ASGIApp:
    """The whole application. The model is loaded when it starts, in the engine's own thread."""
    api = FastAPI(
        title="Wager",
        version=__version__,
        docs_url=None,  # its page would fetch scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
    )
    api.state.service = service
    for router in ROUTERS:
        api.include_router(router)
    api.add_exception_handler(ClientDisconnect, _gone)
    for kind in (RequestValidationError, HTTPException, WagerError, Exception):
        api.add_exception_handler(kind, _refuse)
    _add_page(api)
    app: ASGIApp = Doors(api, service.config, _leaving(service))
    if service.config.cors_origin:
        origins = list(listed(service.config.cors_origin))
        app = CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    return app


@asynccontextmanager
async def _lifespan(api: FastAPI) -> AsyncGenerator[None, None]:
    service: Service = api.state.service
    service.start()
    yield
    await service.stop()


async def _refuse(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem.status >= 500:
        visit_of(request.scope).notes["error"] = True
    return problem.response(request.url.path)


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody reads this; it is for the access line."""
    return Response(status_code=GONE)


def _leaving(service: Service) -> Callable[[Visit, Scope], None]:
    def leave(visit: Visit, scope: Scope) -> None:
        # The route's own path, not the one asked for: strangers would fill the metrics with names.
        route: Any = scope.get("route")
        service.metrics.count_http(getattr(route, "path", "other"), visit.status)

    return leave


def _add_page(api: FastAPI) -> None:
    """The page at `/` and its parts."""

    @api.get("/", include_in_schema=False)
    async def page() -> Response:
        if not (PAGE / "index.html").is_file():
            raise HTTPException(404)
        return FileResponse(PAGE / "index.html", headers=_PAGE_HEADERS)

    @api.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)

    if PAGE.is_dir():
        api.mount("/page", PageParts(directory=PAGE), name="page")
