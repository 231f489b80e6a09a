"""
Exports into stores: one object that appears whole or not at all, or a folder of objects with a manifest as its commit.

`s3://` has its own requests (`../s3/`), so that parts go up while later rows are rendered.
All other stores are reached by fsspec; the file is made on this host first, and then put by one request:

::

    step                                              if the run is killed after this step, the next run
    ────────────────────────────────────────────────  ─────────────────────────────────────────────────────
    put the run's record                              makes the file again (RowExport on this host: continues it)
    make the file on this host                        puts it; on another host, makes it again
    put the run's record with the manifest            does the same
    put the bytes of the file                         does the same
    request permission to commit                      does the same
    make the object appear, only if there is none     finds its own object by the label, puts the manifest
    request permission once more                      does the same
    put OBJECT.manifest.json                          removes the stage, returns the manifest
    remove the stage                                  returns the manifest

- The first request of a run lists the stages in the folder; the object's label (metadata) has the uid of the job, and the SHA-256 of the bytes.
- Each run has its own record, so a run that was frozen changes no record of a later one.
  It asks for permission when it has read all bytes of its file, so it makes no object appear, unless it was frozen in the last block (8 MiB) after that.
  Into a folder, it can still put files that the later run's manifest does not list; `steadyworker verify` reports them.
  The manifest of an object is that of the run whose SHA-256 is on the label.
- The second of two jobs finds the object's uid, and raises TargetExists.

Several files are made on this host first, too, in each store, because many of them are open at a time.
Then up to four of them are put at a time, and their manifest last.
A reader who begins with `_manifest.json` sees all files or none.
The first of two jobs claims the folder before it makes a row (`.sw-stage/<digest>.claim`), and the second raises TargetExists.

The promises of each store:

| address | extra | an object appears | of two jobs | label | replace-own | several files |
|---|---|---|---|---|---|---|
| `s3://` | `s3` | whole | the first wins (If-None-Match) | yes | one object (If-Match) | yes |
| `gs://` | `gcs` | whole | the first wins (ifGenerationMatch=0) | yes | no | yes |
| `abfs://`, `az://` | `azure` | whole | the first wins (If-None-Match) | yes | no | yes |
| others, such as `sftp://` (`pip install sshfs`) | – | by a move | the later can win, if the server's move replaces a file | no | no | no |

What a store cannot promise is in the manifest (`limits`), in a warning of each export (`export_target_limited`),
and in the answer of `steadyworker verify --target URL`, which puts and removes small objects there.
`steadyworker check` cannot know it, because a handler names its target when it runs.

Credentials and options come from the store's own library: for Google, the application default credentials (`GOOGLE_APPLICATION_CREDENTIALS`);
for Azure, `AZURE_STORAGE_ACCOUNT_NAME` with the default credential, or `AZURE_STORAGE_CONNECTION_STRING`; for all, fsspec's configuration (`FSSPEC_SFTP_USERNAME`).
An address with a password is refused.

What a killed job leaves is removed after its end: by the worker processes of its host, about once an hour, with the settings of their own environment;
by the next job that exports to the same folder of the store; or by `steadyworker verify --reap URL`.
If the job was killed between its object and the manifest, the manifest is put then, where objects have labels.
A store with folders keeps an empty folder `.sw-stage`.

The rights: create, read, list and delete objects below the folder.
Without the right to delete, exports are whole, too, but their stages stay (`export_stage_left`), and a retry into a folder with other files fails.
Google and Azure end an unfinished upload after a week.

| file | content |
|---|---|
| `store.py` | the Protocol `ObjectStore` |
| `opening.py` | the address of a target, and its store |
| `url.py` | `StoreUrl`: an address for fsspec |
| `filesystem.py` | the stores of fsspec |
| `stage.py` | the records of a job's runs in the store |
| `reaping.py` | the end of what killed jobs have left in the store |
| `run.py` | what all publications share |
| `single.py` | what the publications of one object share |
| `file.py` | the publication of one file of this host |
| `folder.py` | the publication of several files |
| `files.py` | the files on this host: made, and put several at a time |
| `target.py` | `StoreTarget`, which publishes with these |
| `copying.py` | copies on this host, for `verify` |
| `trial.py` | the trial of a target before a deploy |
"""
