"""
Exports into a bucket of S3: one object from the parts of an upload, which appears whole or not at all.

::

    step                                              if the run is killed after this step, the next run
    ────────────────────────────────────────────────  ─────────────────────────────────────────────────────
    put the run's record                              ends an upload that has no record, and begins one
    CreateMultipartUpload, with the job's uid         does the same
    put the run's record with the upload's id         continues this upload
    UploadPart …, while later rows are rendered       makes the rows again, and leaves out the parts that are there
    put the manifest and the list of parts            requests permission and completes, computes nothing
    request permission to commit                      does the same
    CompleteMultipartUpload, If-None-Match: *         finds its own object by the uid, puts the manifest
    request permission once more                      does the same
    put OBJECT.manifest.json                          removes the stage, returns the manifest
    remove the stage                                  returns the manifest

- Until Complete, readers see nothing: the parts of an upload are no object.
- The first request of a run lists the stages in the folder; the object's metadata has the uid of the job that made it.
- `If-None-Match` lets only the first of two jobs complete; the second finds the object's uid, and raises TargetExists.
- The stage is in the bucket, so the next run can be on another host.
- A part is left out if the bucket lists it with the same size and SHA-256, or without a SHA-256 with the same MD5.
  Equal rows make equal parts, so a run that comes again uploads only what is missing; it makes all rows again.
- A run of the same job that was frozen can only complete the parts that the stage lists.
- With `if_exists="replace-own"`, the condition of Complete is `If-Match`, with the ETag of an object that an earlier job with the same queue and key made.
  So an object that another program puts there meanwhile stays.
  A reader between Complete and the manifest sees an object that does not fit its manifest, as on a disk.
  A folder is not replaced, because no request replaces several objects together.

Several files are published as in each store (`../stores/`), which also removes what killed jobs leave.
A life-cycle rule (AbortIncompleteMultipartUpload) is a good second guard.

In a bucket with versions, each removal leaves an earlier version: of the stage's small objects, of the files of a folder that was not completed, and of a replaced object.
A life-cycle rule (NoncurrentVersionExpiration) removes them; only the newest version decides whether a target exists.

The rights: `s3:GetObject`, `s3:PutObject`, `s3:DeleteObject`, `s3:AbortMultipartUpload` and `s3:ListMultipartUploadParts` for objects,
`s3:ListBucket` and `s3:ListBucketMultipartUploads` for the bucket, and those of the KMS key.

| file | content |
|---|---|
| `address.py` | `S3`: the address and its options |
| `bucket.py` | requests to a bucket, and their errors |
| `upload.py` | the parts of one object |
| `object.py` | the publication of one object |
| `reading.py` | links to objects, and objects that are read in ranges |
"""
