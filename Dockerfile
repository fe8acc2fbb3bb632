# One static binary, without shell, git or C library.
#
#   docker build -t lockstep .
#   docker buildx build --platform linux/amd64,linux/arm64 -t registry.example.com/lockstep:0.1.0 .
#
# lockstep version prints the commit, which the build reads from .git. VERSION, REVISION, CREATED and
# SOURCE set the image's labels.

# Cross-compile from the build platform.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
RUN --mount=type=bind,source=go.mod,target=/src/go.mod \
    --mount=type=bind,source=go.sum,target=/src/go.sum \
    --mount=type=cache,target=/go/pkg/mod \
    go mod download
# Podman mounts the folder with its owner on the host, which may be another user than root: Git must trust it.
RUN --mount=type=bind,target=/src \
    --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=/src \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags=-s -o /out/lockstep ./cmd/lockstep
# A new volume inherits the owner of its folder, so that user 65532 can write to it.
RUN mkdir -p /out/volume/repos /out/volume/spool && install -d -m 1777 /out/volume/tmp

FROM scratch
ARG VERSION=dev REVISION=unknown CREATED=unknown SOURCE=unknown
LABEL org.opencontainers.image.title="Lockstep" \
      org.opencontainers.image.description="Keeps shared Git clones in step with their remotes" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.created=$CREATED \
      org.opencontainers.image.source=$SOURCE
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chown=65532:65532 /out/volume/ /
COPY --from=build /out/lockstep /lockstep
# The process needs to write only below LOCKSTEP_ROOT and LOCKSTEP_SPOOL, so the root file system may be read-only. A reader
# of large repositories shares packs better with a folder on disk mounted at /tmp. The admin
# listener is only for health checks and profiles inside this container.
ENV LOCKSTEP_ROOT=/repos LOCKSTEP_SPOOL=/spool LOCKSTEP_ADMIN_LISTEN=127.0.0.1:6060
VOLUME ["/repos", "/spool"]
USER 65532:65532
EXPOSE 8080
# SIGTERM drains: allow 40 s before killing the container.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=4s --start-period=30s --retries=3 CMD ["/lockstep", "healthcheck"]
ENTRYPOINT ["/lockstep"]
CMD ["serve"]
