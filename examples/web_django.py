"""The export as a Django application in one file: start, progress, cancel, download. `python web_django.py runserver` serves it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, JsonResponse
from django.urls import path
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_http_methods
from web_exports import PAGE, QUEUE, as_json, failed, new_exports

from steadyworker import Client, JobState

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    SECRET_KEY=os.environ.get("DJANGO_SECRET_KEY", "only for the development server"),
    MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"],
)

client = Client()  # one for each process, also in a server that forks


@require_GET
@ensure_csrf_cookie
def page(_: HttpRequest) -> HttpResponse:
    return HttpResponse(PAGE.read_bytes())


# A key can be guessed: before each of these functions returns, check that the user may see this merchant's exports.


@require_http_methods(["GET", "POST", "DELETE"])
def export(request: HttpRequest, name: str) -> HttpResponse:
    if request.method == "POST":
        job = next(job for job in new_exports(name) if not failed(client.status(QUEUE, str(job.key))))
        return JsonResponse({"key": client.send(QUEUE, job.payload, key=job.key)}, status=202)
    if request.method == "DELETE":
        client.cancel(QUEUE, name, "by the user")
        return HttpResponse(status=202)
    return JsonResponse(as_json(client.status(QUEUE, name)))


@require_GET
def download(_: HttpRequest, name: str) -> HttpResponseBase:
    status = client.status(QUEUE, name)
    if status.state is not JobState.DONE:
        return JsonResponse({"detail": f"The export is {status.state}."}, status=409)
    if "url" in status.result:
        return HttpResponseRedirect(status.result["url"])
    return FileResponse(Path(status.result["file"]).open("rb"), as_attachment=True)


urlpatterns = [path("", page), path("exports/<str:name>", export), path("exports/<str:name>/file", download)]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
