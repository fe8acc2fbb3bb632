FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags=-s -o /out/lockstep ./cmd/lockstep
# An empty volume takes over the folder's owner, so that user 65532 can write to it.
RUN mkdir -p /out/volume/repos /out/volume/spool

# Nothing but the binary: it needs no shell, no git and no C library.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chown=65532:65532 /out/volume/ /
COPY --from=build /out/lockstep /lockstep
# Whatever is written is written below LOCKSTEP_ROOT, or by a receiver of webhooks below LOCKSTEP_SPOOL: the root
# file system may be read-only.
ENV LOCKSTEP_ROOT=/repos LOCKSTEP_SPOOL=/spool
VOLUME ["/repos", "/spool"]
USER 65532:65532
EXPOSE 8080
# SIGTERM drains: allow for more than --grace, 25 s, before killing the container.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/lockstep"]
CMD ["serve"]
