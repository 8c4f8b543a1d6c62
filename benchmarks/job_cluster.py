"""`python -m benchmarks.job_cluster SOURCE FOLDER`, where Dask and moto are installed: digests of what jobs write."""

from __future__ import annotations

import json
import os
import sys
from hashlib import sha256
from pathlib import Path

import squish_core as squish

TASK = 2 << 20


def on_dask(source: Path, folder: Path, workers: int) -> str:
    """The digest of what the workers of a cluster write."""
    from distributed import LocalCluster

    target = folder / f"dask-{workers}.gguf"
    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        scheduler = f"dask:{cluster.scheduler_address}"
        squish.convert(source, target, encode="q4_k", job=squish.Job(scheduler, task_bytes=TASK))
    return sha256(target.read_bytes()).hexdigest()


def in_a_bucket(source: Path) -> str:
    """The digest of an object that a worker has uploaded."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
    }  # fmt: skip
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    client.create_bucket(Bucket="models")
    squish.convert(source, "s3://models/out.gguf", encode="q4_k", job=squish.Job("local:2", task_bytes=TASK))
    body = client.get_object(Bucket="models", Key="out.gguf")["Body"].read()
    server.stop()
    return sha256(body).hexdigest()


def main(source: Path, folder: Path) -> None:
    """Print the digests as JSON."""
    os.chdir(folder)  # journals of targets at URLs
    digests = {f"Dask, {count} worker{'s' * (count > 1)}": on_dask(source, folder, count) for count in (1, 2)}
    print(json.dumps({**digests, "an object in a bucket (moto), `local:2`": in_a_bucket(source)}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
