"""The export as a FastAPI application: start, progress, cancel, download. `uvicorn web_fastapi:app` serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, RedirectResponse, Response
from web_exports import PAGE, QUEUE, as_json, failed, new_exports

from steadyworker import Client, JobState


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Client]]:
    """Open a client for each start of the application: a closed client stays closed, and tests start an application often."""
    async with Client() as client:
        yield {"client": client}


async def opened(request: Request) -> Client:
    client: Client = request.state.client
    return client


Opened = Annotated[Client, Depends(opened)]
app = FastAPI(lifespan=lifespan)


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(PAGE)


# A key can be guessed: before each of these functions returns, check that the user may see this merchant's exports.


@app.post("/exports/{merchant}", status_code=202)
async def start(client: Opened, merchant: str) -> dict[str, object]:
    jobs = new_exports(merchant)
    job = next(jobs)
    while failed(await client.astatus(QUEUE, str(job.key))):
        job = next(jobs)
    return {"key": await client.asend(QUEUE, job.payload, key=job.key)}


@app.get("/exports/{key}")
async def progress(client: Opened, key: str) -> dict[str, object]:
    return as_json(await client.astatus(QUEUE, key))


@app.delete("/exports/{key}", status_code=202)
async def cancel(client: Opened, key: str) -> None:
    await client.acancel(QUEUE, key, "by the user")


@app.get("/exports/{key}/file")
async def download(client: Opened, key: str) -> Response:
    status = await client.astatus(QUEUE, key)
    if status.state is not JobState.DONE:
        raise HTTPException(409, f"The export is {status.state}.")
    if "url" in status.result:
        return RedirectResponse(status.result["url"])
    return FileResponse(status.result["file"], filename=f"{status.key}.csv")
