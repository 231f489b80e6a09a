"""The page below `/jobs/` in a Django project, for its staff: `uvicorn web_django_page:application` serves both."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from io import BytesIO
from typing import Any

from django.conf import settings
from django.contrib.auth import aget_user
from django.contrib.sessions.backends.db import SessionStore
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.authentication import SimpleUser
from starlette.responses import RedirectResponse
from starlette.routing import Mount

from steadyworker.dashboard import app

Scope = MutableMapping[str, Any]
Call = Callable[..., Awaitable[Any]]


def front(_: HttpRequest) -> HttpResponse:
    return HttpResponse(b"Django")


urlpatterns = [path("", front)]
settings.configure(  # your project has a settings module instead
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    SECRET_KEY=os.environ.get("DJANGO_SECRET_KEY", "only for the development server"),
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DJANGO_DB", "django.db")}},
    LOGIN_URL="/login/",
)


def for_staff(page: Call) -> Call:
    """Return the page, with Django's login in front of it: a mounted application is behind no middleware of Django's."""

    async def guarded(scope: Scope, receive: Call, send: Call) -> None:
        request: Any = ASGIRequest(scope, BytesIO())
        request.session = SessionStore(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
        user = await aget_user(request)
        if user.is_active and user.is_staff:
            # The log of actions names this user.
            await page({**scope, "user": SimpleUser(user.get_username())}, receive, send)
        else:
            await RedirectResponse(settings.LOGIN_URL)(scope, receive, send)

    return guarded


django = get_asgi_application()
application = Starlette(routes=[Mount("/jobs", for_staff(app(behind_login=True))), Mount("/", django)])
