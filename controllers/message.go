package controllers

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// oneLine makes one line of text that may hold what a user wrote, or a member answers: without what a terminal would act on.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.Join(strings.Fields(s), " "))
}

// listed lists names for a message: sorted, and no more than a few.
func listed(names []string) string {
	const most = 5
	if len(names) == 0 {
		return "(none)"
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
