export {EditorView, keymap, lineNumbers, highlightActiveLine, drawSelection, Decoration, hoverTooltip} from "@codemirror/view";
export {EditorState, StateEffect, StateField, Compartment} from "@codemirror/state";
export {defaultKeymap, history, historyKeymap, indentWithTab} from "@codemirror/commands";
export {cpp} from "@codemirror/lang-cpp";
export {syntaxHighlighting, HighlightStyle, bracketMatching, indentUnit} from "@codemirror/language";
export {tags} from "@lezer/highlight";
