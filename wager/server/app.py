"""The application: routes, error handlers, middleware and the page. run.py and tests call `make_app`."""

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
from wager.server import auxiliary_routes, chat, completions, messages, responses
from wager.server.api_errors import to_api_error
from wager.server.middleware import CLIENT_CLOSED_REQUEST, AccessRecord, RequestMiddleware, access_record
from wager.server.model_service import ModelService
from wager.server_config import split_list

PAGE = Path(__file__).parent / "page"
ROUTERS = (chat.router, completions.router, responses.router, messages.router, auxiliary_routes.router)
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:;"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageFiles(StaticFiles):
    """The files of the page, with its security headers."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(_PAGE_HEADERS)
        return response


def make_app(service: ModelService) -> ASGIApp:
    """The whole application. Loading the model begins when the application starts."""
    api = FastAPI(
        title="Wager",
        version=__version__,
        docs_url=None,  # its page would load scripts from other servers
        redoc_url=None,
        lifespan=_lifespan,
    )
    api.state.service = service
    for router in ROUTERS:
        api.include_router(router)
    api.add_exception_handler(ClientDisconnect, _answer_disconnect)
    for kind in (RequestValidationError, HTTPException, WagerError, Exception):
        api.add_exception_handler(kind, _answer_error)
    _add_page(api)
    app: ASGIApp = RequestMiddleware(api, service.config, _count_requests(service))
    if service.config.cors_origin:
        origins = list(split_list(service.config.cors_origin))
        app = CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    return app


@asynccontextmanager
async def _lifespan(api: FastAPI) -> AsyncGenerator[None, None]:
    service: ModelService = api.state.service
    service.start()
    yield
    await service.stop()


async def _answer_error(request: Request, error: Exception) -> Response:
    api_error = to_api_error(error)
    if api_error.status >= 500:
        access_record(request.scope).details["error"] = True
    return api_error.response(request.url.path)


async def _answer_disconnect(request: Request, error: Exception) -> Response:
    """Nobody receives this response; its status is for the access log."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _count_requests(service: ModelService) -> Callable[[AccessRecord, Scope], None]:
    def count(record: AccessRecord, scope: Scope) -> None:
        # The path of the route is counted, not the requested one: clients could create any number of labels.
        route: Any = scope.get("route")
        service.metrics.count_http(getattr(route, "path", "other"), record.status)

    return count


def _add_page(api: FastAPI) -> None:
    """Add the page at `/` and its files."""

    @api.get("/", include_in_schema=False)
    async def page() -> Response:
        if not (PAGE / "index.html").is_file():
            raise HTTPException(404)
        return FileResponse(PAGE / "index.html", headers=_PAGE_HEADERS)

    @api.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)

    if PAGE.is_dir():
        api.mount("/page", PageFiles(directory=PAGE), name="page")
