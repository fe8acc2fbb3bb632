package availability

import (
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// line is one line of a plot.
type line struct {
	Name   string
	Points []Point
}

// plot is a chart of shares over time.
type plot struct {
	Title string
	Run   time.Duration // the length of the time axis
	Lines []line
}

// The drawing, in pixels.
const (
	plotLeft, plotTop     = 60, 50
	plotWide, plotHigh    = 600, 240
	plotLegend, plotTicks = 22, 5
)

// writeSVG writes the plot as an SVG document.
func (p plot) writeSVG(w io.Writer) error {
	colours := []string{"#c0392b", "#e08e0b", "#1e7e44", "#2563a8"}
	var svg strings.Builder
	high := plotTop + plotHigh + 45 + plotLegend*len(p.Lines)
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotLeft+plotWide+20, high)
	fmt.Fprintf(&svg, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	fmt.Fprintf(&svg, `<text x="%d" y="24" font-size="15">%s</text>`+"\n", plotLeft, html.EscapeString(p.Title))
	for i := range plotTicks + 1 {
		share := float64(i) / plotTicks
		x, y := p.at(Point{time.Duration(share * float64(p.Run)), share})
		fmt.Fprintf(&svg, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`+"\n", plotLeft, y, plotLeft+plotWide, y)
		fmt.Fprintf(&svg, `<text x="%d" y="%.1f" text-anchor="end">%.0f %%</text>`+"\n", plotLeft-6, y+4, 100*share)
		fmt.Fprintf(&svg, `<text x="%.1f" y="%d" text-anchor="middle">%.3g s</text>`+"\n", x, plotTop+plotHigh+18, share*p.Run.Seconds())
	}
	for i, l := range p.Lines {
		colour := colours[i%len(colours)]
		points := make([]string, len(l.Points))
		for n, point := range l.Points {
			x, y := p.at(point)
			points[n] = fmt.Sprintf("%.1f,%.1f", x, y)
		}
		fmt.Fprintf(&svg, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`+"\n", colour, strings.Join(points, " "))
		y := plotTop + plotHigh + 45 + plotLegend*i
		fmt.Fprintf(&svg, `<rect x="%d" y="%d" width="24" height="4" fill="%s"/>`+"\n", plotLeft, y-6, colour)
		fmt.Fprintf(&svg, `<text x="%d" y="%d">%s</text>`+"\n", plotLeft+32, y, html.EscapeString(l.Name))
	}
	svg.WriteString("</svg>\n")
	_, err := io.WriteString(w, svg.String())
	return err
}

// at returns the position of a point.
func (p plot) at(point Point) (x, y float64) {
	return plotLeft + plotWide*float64(point.To)/float64(p.Run), plotTop + plotHigh*(1-point.Share)
}
