package server

import (
	_ "embed" // the document
	"net/http"
)

// openAPI describes all that this package answers, for people and for generators of clients. The package's tests hold
// it against what the server really takes and answers.
//
//go:embed openapi.yaml
var openAPI []byte

func describe() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(openAPI)
	})
}
