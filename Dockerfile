FROM golang:1.26 AS build
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /fleet-controller ./cmd/fleet-controller

FROM gcr.io/distroless/static:nonroot
COPY --from=build /fleet-controller /
USER 65532:65532
ENTRYPOINT ["/fleet-controller"]
