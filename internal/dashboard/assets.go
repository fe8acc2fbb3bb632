package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

//go:embed templates
var templates embed.FS

// asset is an embedded file.
type asset struct {
	kind     string // its MIME type
	hash     string
	content  []byte
	squeezed []byte // the same with gzip
}

// assets are the embedded files that pages name, by path.
type assets map[string]asset

var kinds = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

func loadAssets() (assets, error) {
	all := assets{}
	err := fs.WalkDir(static, "static", func(name string, entry fs.DirEntry, err error) error {
		kind := kinds[path.Ext(name)]
		if err != nil || entry.IsDir() || kind == "" {
			return err
		}
		content, err := static.ReadFile(name)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		zip, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // that is a level
		_, _ = zip.Write(content)                               // a buffer takes everything
		_ = zip.Close()
		sum := sha256.Sum256(content)
		all[strings.TrimPrefix(name, "static/")] = asset{kind, hex.EncodeToString(sum[:6]), content, b.Bytes()}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("dashboard: load embedded files: %w", err)
	}
	return all, nil
}

// url is where a file is, by a name that changes with its content.
func (a assets) url(name string) (string, error) {
	file, ok := a[name]
	if !ok {
		return "", fmt.Errorf("no embedded file %s", name)
	}
	return "/dashboard/static/" + file.hash + "/" + name, nil
}

// serve answers with a file. While replicas of two versions run, a page may ask one for the other's file: it is
// given this one's, not to be kept.
func (a assets) serve(w http.ResponseWriter, r *http.Request) {
	file, ok := a[r.PathValue("name")]
	if !ok {
		http.Error(w, "there is no such file", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", file.kind)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	if r.PathValue("hash") == file.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	content, tag := file.content, file.hash
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		content, tag = file.squeezed, file.hash+"-gzip"
	}
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}
