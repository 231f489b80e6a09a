"""The export as a FastAPI application: start, progress, cancel, download. `uvicorn web_fastapi:app` serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse
from web_exports import PAGE, Exports, as_json, file_of, new_export

from steadyworker import Client, JobState

client = Client()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with client:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(PAGE)


# A key can be guessed: before each of these functions returns, check that the user may see this merchant's exports.


@app.post("/exports/{merchant}", status_code=202)
async def start(merchant: str) -> dict[str, object]:
    job = new_export(merchant)
    return {"key": await client.asend(Exports, job.payload, key=job.key)}


@app.get("/exports/{key}")
async def progress(key: str) -> dict[str, object]:
    return as_json(await client.astatus(Exports, key))


@app.delete("/exports/{key}", status_code=202)
async def cancel(key: str) -> None:
    await client.acancel(Exports, key, "by the user")


@app.get("/exports/{key}/file")
async def download(key: str) -> FileResponse:
    status = await client.astatus(Exports, key)
    if status.state is not JobState.DONE:
        raise HTTPException(409, f"The export is {status.state}.")
    return FileResponse(file_of(status.key), filename=f"{status.key}.csv")
