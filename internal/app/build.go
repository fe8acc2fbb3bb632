package app

import (
	"runtime"
	"runtime/debug"
)

// build says which build this is, as the Go toolchain recorded it.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`           // empty when it was not built from a repository
	Time     string `json:"time,omitempty"`     // of the revision
	Modified bool   `json:"modified,omitempty"` // since
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func ReadBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}
