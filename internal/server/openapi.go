package server

import (
	_ "embed" // the document
	"net/http"
)

// openAPI is the OpenAPI document of this package's endpoints. Tests compare it with the server's real requests and
// responses.
//
//go:embed openapi.yaml
var openAPI []byte

func describe() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(openAPI)
	})
}
