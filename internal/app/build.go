package app

import (
	"runtime"
	"runtime/debug"
)

// Build identifies a build of lockstep, as the Go toolchain recorded it.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`           // empty if built outside a repository
	Time     string `json:"time,omitempty"`     // commit time of Revision
	Modified bool   `json:"modified,omitempty"` // built with uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ReadBuild returns the build of this binary.
func ReadBuild() Build {
	b := Build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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
