# One static binary and nothing else: it needs no shell, no git and no C library.
#
#   docker build -t lockstep .
#   docker buildx build --platform linux/amd64,linux/arm64 -t registry.example.com/lockstep:1.0 .
#
# The binary says which commit it is, from .git: lockstep version. VERSION and REVISION are for the image's labels.

# It is compiled on the machine's own platform for the one that is wanted.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
RUN --mount=type=bind,source=go.mod,target=go.mod \
    --mount=type=bind,source=go.sum,target=go.sum \
    --mount=type=cache,target=/go/pkg/mod \
    go mod download
RUN --mount=type=bind,target=/src \
    --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags=-s -o /out/lockstep ./cmd/lockstep
# An empty volume takes over the folder's owner, so that user 65532 can write to it.
RUN mkdir -p /out/volume/repos /out/volume/spool

FROM scratch
ARG VERSION=dev REVISION=unknown
LABEL org.opencontainers.image.title="Lockstep" \
      org.opencontainers.image.description="Keeps shared Git clones in step with their remotes" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chown=65532:65532 /out/volume/ /
COPY --from=build /out/lockstep /lockstep
# Whatever is written is written below LOCKSTEP_ROOT, or by a receiver of webhooks below LOCKSTEP_SPOOL: the root
# file system may be read-only. The admin listener is for this container alone: its health, and profiles.
ENV LOCKSTEP_ROOT=/repos LOCKSTEP_SPOOL=/spool LOCKSTEP_ADMIN_LISTEN=127.0.0.1:6060
VOLUME ["/repos", "/spool"]
USER 65532:65532
EXPOSE 8080
# SIGTERM drains: allow for more than --grace, 25 s, before killing the container.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=4s --start-period=30s --start-interval=1s --retries=3 CMD ["/lockstep", "healthcheck"]
ENTRYPOINT ["/lockstep"]
CMD ["serve"]
