"""What workers of tests say they are built from. Not told, temporalio hashes the code of every
module that is loaded, and compiles those of the tests for it: nine seconds in a whole run."""

from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

BUILD_ID = "tests"
BUILD = WorkerDeploymentConfig(
    version=WorkerDeploymentVersion(deployment_name=BUILD_ID, build_id=BUILD_ID),
    use_worker_versioning=False,
)
